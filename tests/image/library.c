/* A library with static memory, for tests/image/program.c. */
static char bss[16 << 20];
static int calls = 5;

char *library_bss(void)
{
	return bss;
}

int library_call(int n)
{
	return n + (calls == 5);
}
