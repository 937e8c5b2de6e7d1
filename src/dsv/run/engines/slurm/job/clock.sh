# The time of the command counts from here. Slurm's own limit comes later, as it counts from before the data was there.
(@warning@
  sleep @seconds@
  : >"$late"
  kill -s TERM -- "-$command" || rm -f "$late"
  sleep @grace@
  kill -s KILL -- "-$command"
) </dev/null >/dev/null 2>&1 3>&- &
clock=$!
disown "$clock"
