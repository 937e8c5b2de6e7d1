#!/usr/bin/env bash
# Makes in FOLDER a git repository with data in DVC (repository.bundle), its remote, and what `dvc checkout` gives for each
# commit (checkouts.json): PATH=VENV/bin:$PATH bash make.sh FOLDER
# dvc-3.67.1 was made with `pip install dvc==3.67.1`, and dvc-2.58.2 with
# `pip install dvc==2.58.2 'pathspec<0.12' 'dulwich<0.22' 'pygit2<1.15' 'networkx<3.2' 'funcy<2' 'voluptuous<0.14'`
set -euo pipefail
out=$(realpath "$1"); work=$(mktemp -d); cd "$work"
export HOME=$work GIT_CONFIG_NOSYSTEM=1 DVC_NO_ANALYTICS=1
save() { # DATE AUTHOR MESSAGE
  dvc push -q; git add -A
  GIT_AUTHOR_DATE="$1" GIT_COMMITTER_DATE="$1" git -c user.name="$2" -c user.email="${2%% *}@example.org" commit -qm "$3"
}
mkdir remote; git init -qb main repo; cd repo; dvc init -q
dvc config core.analytics false; dvc remote add -d storage ../remote
mkdir -p data/train; printf 'cat\n' >data/train/1.txt; printf 'dog\r\nDOG\r\n' >data/train/2.txt
printf 'cat\n' >data/copy.txt; : >data/empty.txt; printf 'one,1\n' >labels.csv
dvc add -q data labels.csv; save '2024-01-02T03:04:05+0100' 'ann Lee' $'first\n\nwith two lines'
git tag v1
printf 'no data here\n' >README.md; save '2024-01-03T00:00:00Z' 'ann Lee' 'words'
rm data/copy.txt; printf 'bird\n' >'data/train/3 ü.txt'; dvc add -q data
save '2024-02-02T00:00:00Z' 'bob' 'birds'
printf 'stages:\n  prepare:\n    wdir: stage\n    cmd: cp ../data/train/1.txt out.txt && echo 0.5 > score.txt && chmod +x out.txt\n    deps: [../data]\n    outs: [out.txt]\n    metrics:\n    - score.txt:\n        cache: false\n' >dvc.yaml
mkdir stage; dvc repro -q; save '2024-03-02T00:00:00Z' 'bob' 'a stage'
git tag v2
rm -rf data labels.csv.dvc labels.csv data.dvc; mkdir data; printf 'new\n' >data/x; dvc add -q data
save '2024-04-02T00:00:00Z' 'ann Lee' 'another start'
rm -rf "$out/remote"; cp -r ../remote "$out/remote"
git bundle create -q "$out/repository.bundle" --all
git clean -qfdx -e .dvc
git rev-list --reverse main | python3 -c '
import json, pathlib, subprocess, sys
found = {}
for rev in sys.stdin.read().split():
    subprocess.run(["git", "checkout", "-q", rev], check=True)
    subprocess.run(["dvc", "checkout", "-q", "--force"], check=True)
    names = json.loads(subprocess.check_output(["dvc", "list", "-R", "--dvc-only", "--json", "."]))
    files = {one["path"]: pathlib.Path(one["path"]).read_bytes().decode() for one in names}
    found[rev] = {path: text for path, text in files.items()}
json.dump(found, sys.stdout, indent=1, ensure_ascii=False, sort_keys=True)
' >"$out/checkouts.json"
