! Fortran's bindings under the MPI layer: with -DF08 those of mpi_f08, else those of `use mpi', which mpif.h has as
! well. Two ranks. Prints "ok" on rank 0, or stops.
program fortran
#ifdef F08
  use mpi_f08
#else
  use mpi
#endif
  implicit none
  integer, parameter :: n = 16384
  double precision, allocatable :: a(:), b(:)
  integer :: rank, other, err, i
#ifdef F08
  type(MPI_Request) :: q(2)
  type(MPI_Status) :: s(2)
#else
  integer :: q(2), s(MPI_STATUS_SIZE, 2)
#endif

  call MPI_Init(err)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, err)
  other = 1 - rank
  allocate(a(n), b(n))
  a = [(rank * 1d6 + i, i = 1, n)]
  b = -1
  call MPI_Irecv(b, n, MPI_DOUBLE_PRECISION, other, 1, MPI_COMM_WORLD, q(1), err)
  call MPI_Isend(a, n, MPI_DOUBLE_PRECISION, other, 1, MPI_COMM_WORLD, q(2), err)
  call MPI_Waitall(2, q, s, err)
  call is(b(n), other * 1d6 + n)
  b = -1
  call MPI_Sendrecv(a, n, MPI_DOUBLE_PRECISION, other, 2, b, n, MPI_DOUBLE_PRECISION, other, 2, MPI_COMM_WORLD, &
                    MPI_STATUS_IGNORE, err)
  call is(b(n), other * 1d6 + n)
  call MPI_Allreduce(MPI_IN_PLACE, b, n, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, err)
  call is(b(n), 1d6 + 2 * n)
  call MPI_Bcast(a, n, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, err)
  call MPI_Bcast(b, n, MPI_DOUBLE_PRECISION, 1, MPI_COMM_WORLD, err)
  call is(a(n), dble(n))
  do i = 1, 3
    call MPI_Bcast(a, n, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, err)
  end do
  if (rank == 0) print '(a)', 'ok'
  call MPI_Finalize(err)
contains
  subroutine is(found, expected)
    double precision, intent(in) :: found, expected
    if (found /= expected) then
      print *, 'rank', rank, found, 'instead of', expected
      error stop
    end if
  end subroutine
end program
