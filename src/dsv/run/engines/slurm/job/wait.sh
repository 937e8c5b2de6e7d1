# This node holds its data now. The script answers once all do; it closes the pipe if they never will. If the
# job is ended before that, this ends at once, so that what holds the data releases it.
trap 'exit 143' HUP INT TERM
trap : USR1 USR2
echo held
IFS= read -r _ || exit 125
exec >>"$1/out.$SLURM_NODEID"
