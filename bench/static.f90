! Random and ordered passes over arrays in COMMON, as the NAS benchmarks have them: 512 MiB.
program static
	implicit none
	integer, parameter :: n = 33554432
	double precision :: a(n), b(n), sum
	integer(8) :: at
	integer :: i, pass
	common /arrays/ a, b
	do i = 1, n
		a(i) = i
		b(i) = 0
	end do
	at = 1
	do i = 1, 12000000
		at = iand(at * 1103515245_8 + 12345_8, 2147483647_8)
		b(1 + mod(at, int(n, 8))) = b(1 + mod(at, int(n, 8))) + a(1 + mod(at / 3, int(n, 8)))
	end do
	do pass = 1, 2
		do i = 2, n
			a(i) = 0.5d0 * (a(i) + a(i - 1))
		end do
	end do
	sum = 0
	do i = 1, n, 4096
		sum = sum + a(i) + b(i)
	end do
	print '(e14.7)', sum
end program
