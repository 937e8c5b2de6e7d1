# One task for each node, which makes sure of the data and holds it from then on until its command has ended. No command
# begins before all nodes hold their data. The first node that fails ends the others.
coproc step {
  trap : TERM
  srun --ntasks-per-node=1 --kill-on-bad-exit=1 --open-mode=append --error="${folder//%/%%}/err.%n" \
    bash -c @begin@ begin "$folder" "$attempt" "$task"
  code=$?
  exec >&-
  read -r _
  exit "$code"
}
step_pid=$! held=0
while [ "$held" -lt "$SLURM_JOB_NUM_NODES" ] && IFS= read -r line <&"${step[0]}"; do
  [ "$line" != held ] || held=$((held + 1))
done
trap : PIPE
again=
if [ "$held" -eq "$SLURM_JOB_NUM_NODES" ] && [ ! -e "$folder/stopped" ]; then
  again=yes
  echo go >&"${step[1]}"
fi
eval "exec ${step[1]}>&-"
while wait "$step_pid" || :; kill -0 "$step_pid"; do :; done 2>&-
wait "$step_pid"
code=$?
[ "$again" ] || code=125
