# What this script does last. The dsv that submitted the job completes the record of the run, if it still looks on; else
# this node does, at once if it is known that nobody looks on. If it can't, any dsv does that looks later.
complete() {
  local found turn
  for ((turn = 0; turn < 100; turn++)); do
    [ -e "$folder/end" ] || return 0
    [ ! -e "$folder/unwatched" ] || break
    for found in "$folder"/attende[d]; do [ ! -e "$found" ] || return 0; done
    sleep 0.1
  done
  # Whatever happens to the node from here on, the job is over.
  [ "$retries" -eq 0 ] || scontrol update "JobId=$SLURM_JOB_ID" Requeue=0
  printf '%s\0' @argv@ >"$folder/argv"
  timeout --kill-after=10 @seconds@ @close@ --left "$folder" <<<@order@ >"$folder/complete.log" 2>&1
} 2>/dev/null
