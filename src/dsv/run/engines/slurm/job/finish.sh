# It succeeded only if every command did: srun doesn't know of those that it stopped waiting for.
for ((node = 0; code == 0 && node < SLURM_JOB_NUM_NODES; node++)); do
  own=
  read -r _ _ own _ <"$folder/node.$attempt.$node"
  code=${own:-137}
done 2>&-

# What dsv or bash says instead of a command: the data is not held any more, or a command can't be started. It would go
# the same way again, unless a command itself ended so, or srun lost a node.
if [ "$code" -ge 125 ] && [ "$code" -le 127 ]; then
  again=
  for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
    own=
    read -r _ _ own _ <"$folder/node.$attempt.$node"
    [ "$own" != "$code" ] || again=yes
  done
  log=$(<"$folder/slurm.log") lost='@lost@'
  [[ ! ${log##*$'\nattempt '} =~ $lost ]] || again=yes
fi 2>&-

# Nor does a command get more time in a further attempt.
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
  [ -e "$folder/late.$attempt.$node" ] || continue
  again=
  [ "$code" -ne 0 ] || code=124
done

# An attempt that failed is followed by another, unless somebody ended the job. Slurm itself begins one again that it
# preempted, or that lost a node.
if [ "$attempt" -le "$retries" ] && [ ! -e "$folder/stopped" ]; then
  [ -z "$told" ] || exit "$code"
  [ "$code" -eq 0 ] || [ -z "$again" ] ||
    { echo "attempt $attempt ended with $code" && scontrol requeue "$SLURM_JOB_ID" && sleep infinity; }
fi
finish "$code"
