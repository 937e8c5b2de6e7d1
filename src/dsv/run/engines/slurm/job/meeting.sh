scontrol show hostnames "$SLURM_JOB_NODELIST" >"$folder/hosts.$attempt" || finish 125
read -r MASTER_ADDR <"$folder/hosts.$attempt"
export MASTER_ADDR MASTER_PORT=@port@ WORLD_SIZE=$SLURM_JOB_NUM_NODES
export PET_NNODES=$WORLD_SIZE PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT
