# SPDX-License-Identifier: Apache-2.0
"""Writes what bash and zsh complete after `froghopper`: its commands, their options and the options' values, as the
program's --help has them.

usage: python3 tools/gen_completion.py PROGRAM bash|zsh      prints it, for packaging/completion
"""
import re
import subprocess
import sys
import textwrap

COLUMNS = 118
FILE = re.compile(r"FILE|\.npy|^OUT$")  # what stands for a file in --help
OPENING = """# SPDX-License-Identifier: Apache-2.0
# What {shell} completes after `froghopper`. Written by tools/gen_completion.py from the program's --help; do not edit.
"""


def help_of(program, *words):
    return subprocess.run([program, *words, "--help"], check=True, capture_output=True, text=True).stdout


def entries(text, title):
    """[(what, description)] of a section. What is indented by two blanks, and a description may begin a line later."""
    section = re.search(rf"^{title}:\n((?:  .*\n)*)", text, re.MULTILINE)
    found = []
    for line in section[1].splitlines() if section else []:
        if re.match(r"  \S", line):
            what, _, words = line.strip().partition("  ")
            found.append([what, words.strip()])
        elif not found[-1][1]: found[-1][1] = line.strip()
    return found


def option(what):
    """Of --backend TEXT:{auto,cpu,hopper}=auto: its names, the word for what follows or "", the values it may have."""
    names, _, rest = what.partition(" ")
    values = re.search(r"\{(.*)\}", rest)
    kind = "" if rest.startswith("Excludes:") else re.split(r"[=: ]", rest)[0]
    return names.split(","), kind, values[1].split(",") if values else []


def commands_of(program):
    """{command: (description, [(names, kind, values, description)])}, in the order of --help."""
    return {name: (words, [(*option(what), said) for what, said in entries(help_of(program, name), "Options")])
            for name, words in entries(help_of(program), "Subcommands")}


def first_long(names): return next(name for name in names if name.startswith("--"))


def bash(commands):
    indent = " " * 4
    def wrapped(words): return textwrap.fill(" ".join(words), COLUMNS - 40, subsequent_indent=indent + "  ")
    lines = [OPENING.format(shell="bash") + "_froghopper() {", "  local words",
             '  case "$COMP_CWORD ${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD - 1]}" in',
             f"    1\\ *) words=\"{wrapped([*commands, '--help', '--version'])}\" ;;"]
    for name, (_, options) in commands.items():
        def after(names): return " | ".join(f"*\\ {name}\\ {one}" for one in names)
        lines += [f"    {after(names)}) words=\"{' '.join(values)}\" ;;" for names, _, values, _ in options if values]
        free = [one for names, kind, values, _ in options if kind and not values for one in names]
        lines += [f"    {after(free[i:i + 5])}) words= ;;" for i in range(0, len(free), 5)]  # a file, number or text
        lines += [f"    *\\ {name}\\ *) words=\"{wrapped(first_long(names) for names, *_ in options)}\" ;;"]
    return "\n".join([*lines, "  esac", "  COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))", "}",
                      "complete -o default -F _froghopper froghopper  # files where none of the words fits", ""])


def zsh(commands):
    def quoted(text): return "'" + text.replace("'", "'\\''") + "'"
    def sentence(words): return re.sub(r"[\[\]]", "", re.split(r"[;:]|\. ", words)[0].rstrip(","))
    lines = ["#compdef froghopper", OPENING.format(shell="zsh") + "local -a commands=("]
    lines += ["  " + quoted(textwrap.shorten(f"{name}:{sentence(words)}", 78, placeholder=""))
              for name, (words, _) in commands.items()]
    lines += [")", "if ((CURRENT == 2)); then",
              "  _describe command commands || _arguments '(-h --help)'{-h,--help} --version", "  return", "fi",
              "shift words", "((CURRENT -= 1))", "case $words[1] in"]
    for name, (_, options) in commands.items():
        lines += [f"  {name})", "    _arguments \\"]
        for names, kind, values, words in options:
            after = f"({' '.join(values)})" if values else "_files" if FILE.search(kind) else ""
            spec = f"{first_long(names)}[{sentence(words)}]"
            if kind: spec += f":{kind.lower().strip(chr(39))}:" + after
            lines += [f"      {quoted(spec)} \\"]
        lines += ["      '*:file:_files'", "    ;;"]
    return "\n".join([*lines, "esac", ""])


def main():
    program, shell = sys.argv[1:]
    print({"bash": bash, "zsh": zsh}[shell](commands_of(program)), end="")


if __name__ == "__main__":
    main()
