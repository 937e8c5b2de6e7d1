# sbatch got the variables of the job in its environment; an option of it may have kept them back.
for name in @names@; do
  each=DSV_JOB_$name
  [ "${!each+set}" ] || { echo "error: sbatch did not pass $each on to the job"; finish 125; }
done
