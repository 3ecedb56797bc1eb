# Sort v[1..n] in place.
function sort_values(v, n,	i, j, t)
{
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && v[j - 1] > v[j]; j--) {
			t = v[j]; v[j] = v[j - 1]; v[j - 1] = t
		}
}
# The value below which the part p of the sorted v[1..n] lies: 0.5 is the median.
function quantile(v, n, p,	at, k)
{
	at = 1 + (n - 1) * p
	k = int(at)
	return k < n ? v[k] + (at - k) * (v[k + 1] - v[k]) : v[n]
}
