# SPDX-License-Identifier: Apache-2.0
# What bash completes after `froghopper`. Written by tools/gen_completion.py from the program's --help; do not edit.
_froghopper() {
  local words
  case "$COMP_CWORD ${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD - 1]}" in
    1\ *) words="info explain check bench prepare attend --help --version" ;;
    *\ info\ *) words="--help --support-table --options --tensors --json" ;;
    *\ explain\ *) words="--help --target --json" ;;
    *\ check\ --backend) words="auto cpu hopper" ;;
    *\ check\ *) words="--help --backend --json --commit --seed --verbose" ;;
    *\ bench\ --backend) words="auto cpu hopper" ;;
    *\ bench\ *) words="--help --backend --tiles --hints --json --ms --rounds --commit --host --cold" ;;
    *\ prepare\ *) words="--help --target --processes --kernel" ;;
    *\ attend\ --backend) words="auto cpu hopper" ;;
    *\ attend\ *) words="--help --output --causal --window --top-left --scale --softcap --grad
      --backend --lse --max-logit --check --repeat" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _froghopper froghopper  # files where none of the words fits
