/* Attaches when it is loaded: hooks_ucx.c. */
int hugepin_ucx_attach(void), hugepin_fabric_attach(void);

static __attribute__((constructor)) void construct(void)
{
	hugepin_ucx_attach();
	hugepin_fabric_attach();
}
