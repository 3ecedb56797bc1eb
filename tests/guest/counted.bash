# Sourced after tap.bash and common.bash: MPI by verbs alone over soft-RoCE, whose registrations the kernel counts.
# shellcheck shell=bash
trace=/sys/kernel/tracing
[ -e $trace/kprobe_events ] || mount -t tracefs tracefs $trace
probed()
{
	grep -q hugepin/reg $trace/kprobe_events || echo 'p:hugepin/reg rxe_reg_user_mr' >$trace/kprobe_events || return
	echo 1 >$trace/events/hugepin/reg/enable
}
works 'the kernel counts registrations' probed
# hits: how many so far.
hits() { awk '$1 == "reg" { print $2 }' $trace/kprobe_profile; }

unset OMPI_MCA_btl
export UCX_TLS=rc_v,self UCX_NET_DEVICES=rxe0:1 UCX_UD_VERBS_ETH_DGID_CHECK=n FI_UNIVERSE_SIZE=16
