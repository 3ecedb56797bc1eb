/*
 * Part of libhugepin-malloc.so: the three functions of the mathematical library that jemalloc's profiler calls. With
 * the library's own, every preloaded program would load libm. Errors are a few units in the last place. Pure.
 */
#include <stdint.h>
#include <string.h>

double hpje_log(double x), hpje_exp(double x), hpje_round(double x);

/* ln 2 as a sum. The first part ends in zeros, so that its product with an exponent is exact. */
#define LN2_HIGH 0x1.62e42fee00000p-1
#define LN2_LOW 0x1.a39ef35793c76p-33

enum { BIAS = 1023, MANTISSA_BITS = 52 };

static uint64_t bits_of(double x)
{
	uint64_t bits;

	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static double from_bits(uint64_t bits)
{
	double x;

	memcpy(&x, &bits, sizeof x);
	return x;
}

/* x must be 0 or a normal positive number. */
double hpje_log(double x)
{
	uint64_t bits = bits_of(x);
	int exponent = (int)(bits >> MANTISSA_BITS) - BIAS;
	double m = from_bits((bits & ((UINT64_C(1) << MANTISSA_BITS) - 1)) | (uint64_t)BIAS << MANTISSA_BITS), s, square,
	       sum = 0;

	if (x <= 0)
		return -__builtin_inf();
	if (m > 1.4142135623730951) { /* near 1 no digits are lost if the exponent is 0 there */
		m /= 2;
		exponent++;
	}
	/* ln m = 2 (s + s^3/3 + s^5/5 ...) with s = (m - 1)/(m + 1), which is 0.1716 at most */
	s = (m - 1) / (m + 1);
	square = s * s;
	for (int n = 21; n >= 3; n -= 2)
		sum = (sum + 1.0 / n) * square;
	return exponent * LN2_HIGH + (exponent * LN2_LOW + 2 * s * sum + 2 * s);
}

double hpje_round(double x)
{
	double whole;

	if (!(x > -0x1p52 && x < 0x1p52))
		return x; /* it has no fraction */
	whole = (double)(int64_t)x;
	return x - whole >= 0.5 ? whole + 1 : x - whole <= -0.5 ? whole - 1 : whole;
}

/* Results below the least normal number are 0, and those from 2^1023.5 on infinite. */
double hpje_exp(double x)
{
	double n = hpje_round(x * 1.4426950408889634), r, sum = 1;

	if (n < 1 - BIAS)
		return 0;
	if (n >= 1 + BIAS)
		return __builtin_inf();
	r = x - n * LN2_HIGH - n * LN2_LOW;
	for (int i = 14; i >= 1; i--)
		sum = 1 + sum * r / i;
	return sum * from_bits((uint64_t)((int)n + BIAS) << MANTISSA_BITS);
}
