/*
 * The functions that stand in for libm's in jemalloc, beside libm's.
 */
#include <math.h>
#include <stdint.h>

#include "tests/t.h"

double hpje_log(double x), hpje_exp(double x), hpje_round(double x);

static uint64_t state = 88172645463325252u;

static double between(double low, double high)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return low + (high - low) * ((double)(state >> 11) / 9007199254740992.0);
}

static bool near(double is, double wants)
{
	return fabs(is - wants) <= 1e-15 * fabs(wants);
}

TEST(logarithms_are_libms_to_fifteen_digits)
{
	for (int i = 0; i < 300000; i++) {
		double x = i % 3 ? ldexp(between(0.5, 1), (int)between(-1000, 1000)) : between(0, 1);
		if (!EXPECT(near(hpje_log(x), log(x))))
			return;
	}
	/* jemalloc's rate of samples is ln(1 - 2^-n) */
	for (int n = 1; n < 53; n++)
		EXPECT(near(hpje_log(1 - ldexp(1, -n)), log(1 - ldexp(1, -n))));
	EXPECT(hpje_log(1) == 0);
	EXPECT(hpje_log(0) == -INFINITY);
}

TEST(exponentials_are_libms_to_fourteen_digits)
{
	for (int i = 0; i < 300000; i++) {
		double x = i % 3 ? between(-708, 709) : between(-1, 1);
		if (!EXPECT(fabs(hpje_exp(x) - exp(x)) <= 1e-14 * exp(x)))
			return;
	}
	EXPECT(hpje_exp(0) == 1);
	EXPECT(hpje_exp(-800) == 0 && hpje_exp(-INFINITY) == 0);
	EXPECT(hpje_exp(800) == INFINITY);
}

TEST(halves_are_rounded_away_from_zero)
{
	static const double exact[] = { 0, 0.5, -0.5, 1.5, -1.5, 2.5, 0.49999999999999994, -0.49999999999999994, 4503599627370495.5,
					-4503599627370495.5, 0x1p52, -0x1p53, 1e300, INFINITY, -INFINITY };

	for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++)
		EXPECT(hpje_round(exact[i]) == round(exact[i]));
	for (int i = 0; i < 300000; i++) {
		double x = between(-1e6, 1e6);
		EXPECT(hpje_round(x) == round(x));
	}
}

T_MAIN
