# One task for each node. The first that fails ends the others.
srun --ntasks-per-node=1 --kill-on-bad-exit=1 --input=none --open-mode=append \
  --output="${folder//%/%%}/out.%n" --error="${folder//%/%%}/err.%n" \
  @hold@bash -c "$task" task "$folder" "$attempt"
code=$? again=yes
