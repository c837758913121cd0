# SPDX-License-Identifier: Apache-2.0
# What bash completes after `froghopper`. Written by tools/gen_completion.py from the program's --help; do not edit.
_froghopper() {
  local words
  case "$COMP_CWORD ${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD - 1]}" in
    1\ *) words="info explain check bench prepare attend --help --version" ;;
    *\ info\ *) words="--help --support-table --options --tensors --json" ;;
    *\ explain\ --target | *\ explain\ --backend) words= ;;
    *\ explain\ *) words="--help --target --json" ;;
    *\ check\ --backend | *\ check\ --target) words="auto cpu hopper" ;;
    *\ check\ --json | *\ check\ --commit | *\ check\ --seed) words= ;;
    *\ check\ *) words="--help --backend --json --commit --seed --verbose" ;;
    *\ bench\ --backend | *\ bench\ --target) words="auto cpu hopper" ;;
    *\ bench\ --tiles | *\ bench\ --hints | *\ bench\ --json | *\ bench\ --ms | *\ bench\ --rounds) words= ;;
    *\ bench\ --commit) words= ;;
    *\ bench\ *) words="--help --backend --tiles --hints --json --ms --rounds --commit --host --cold" ;;
    *\ prepare\ --target | *\ prepare\ --backend | *\ prepare\ --processes | *\ prepare\ --kernel) words= ;;
    *\ prepare\ *) words="--help --target --processes --kernel" ;;
    *\ attend\ --backend | *\ attend\ --target) words="auto cpu hopper" ;;
    *\ attend\ -o | *\ attend\ --output | *\ attend\ --window | *\ attend\ --scale | *\ attend\ --softcap) words= ;;
    *\ attend\ --grad | *\ attend\ --repeat) words= ;;
    *\ attend\ *) words="--help --output --causal --window --top-left --scale --softcap --grad
      --backend --lse --max-logit --check --repeat" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _froghopper froghopper  # files where none of the words fits
