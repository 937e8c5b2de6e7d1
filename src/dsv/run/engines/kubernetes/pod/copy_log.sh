# Part of run.sh: the output of the command goes to the log of the pod, and a copy of it into files, for the record of
# the run: the first two and the last two files of 4 to 8 MiB each. If the copy fails, the log of the pod is complete
# nevertheless.
can_copy() {
  command -v dd && command -v tee && command -v wc && mkfifo $own/pipe $own/copy
}
keep_copy() {
  number=0 lost=0 size=0
  while :; do
    before=$size size=0
    while [ "$size" -lt 4194304 ]; do
      dd bs=65536 count=64 >>$own/log.$number || { rm -f $own/log.*; return; }
      now=$(wc -c <$own/log.$number)
      [ "$now" -gt "$size" ] || return
      size=$now
    done
    number=$((number + 1))
    if [ "$number" -gt 3 ]; then
      lost=$((lost + before))
      echo "$lost" >$own/log.lost
      rm -f $own/log.$((number - 2))
    fi
  done
}
copy_log() { # until the end of the output, in the background
  PATH=$tools
  exec 3>&-
  keep_copy <$own/copy >/dev/null &
  (trap '' PIPE; exec tee $own/copy) <$own/pipe
  wait
  : >$own/copied
}
wait_for_copy() { # but not for what the command left running, which may still hold the pipe
  PATH=$tools
  turn=0
  while [ ! -e $own/copied ] && [ "$turn" -lt 20 ]; do
    sleep 0.1 || sleep 1
    turn=$((turn + 1))
  done
}
