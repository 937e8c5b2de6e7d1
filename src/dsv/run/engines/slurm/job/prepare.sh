attempt=$((${SLURM_RESTART_COUNT:-0} + 1))
mkdir -p "$folder" && rm -f "$folder/end" "$folder/attended"
echo "attempt $attempt on $SLURM_JOB_NODELIST"

# Slurm asks a job to end by SIGTERM. The command gets it too, and the script waits for what it makes of that. From here
# on it writes with what bash has built in, as some Slurms signal every process of a job.
told=
trap 'told=yes' TERM

# A file server or a store that hangs holds the job for this long at most, and changes nothing in how it ended.
finish() { # EXIT-CODE
  local last
  exec {last}< <(
    trap : TERM
    exec 3>&1 >&2
    echo "$1 $SLURM_JOB_NUM_NODES" >"$folder/end"
    complete
  )
  read -r -t "$patience" -u "$last" _
  exit "$1"
}

# The last attempt is not begun again by Slurm either, whatever happens to its node.
if [ "$retries" -gt 0 ] && [ "$attempt" -gt "$retries" ]; then
  scontrol update "JobId=$SLURM_JOB_ID" Requeue=0
fi
