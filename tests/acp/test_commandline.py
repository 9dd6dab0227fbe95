"""Which commands a user's word for good holds for: what an attacker would hide behind a word that was given for another."""

import itertools
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from cantrip_acp.acp.permissions import patterns, shell_parse

SAME = {
    "ls": ["ls", "ls -la src", "ls *.py", "l's' \"a b\"", "ls -I'*.pyc' .", " ls\t-1 ", "ls ü"],
    "cat": ["cat a b", "cat -- -n", "cat 'a;b' \"c|d\""],
    "grep": ["grep -rn 'a|b' src", "grep -E '^x$' a", "grep -c x *"],
    "touch": ["touch a", "touch a b/c"],
    "git status": ["git status", "git status -sb", "git status --porcelain=v2 -- src"],
    "git diff": ["git diff", "git diff --stat HEAD~2", "git diff --cached -- a.py", "git diff -U3 src/*"],
    "git log": ["git log --oneline -n 5", "git log --since='2 days ago' -p -- a", "git log -5"],
    "git show": ["git show HEAD:a.py", "git show --stat abc123"],
    "find": ["find . -name '*.py' -type f", "find src -maxdepth 2 -size -10k", "find . -not -path './x/*' -print"],
    "rg": ["rg -n foo", "rg -tpy -e foo src", "rg --files"],
    "sort": ["sort -k2,2n -t , a", "sort -u a b"],
}
ALONE = """
git -c alias.status='!sh -c id' status
git -c core.fsmonitor=./evil status
git --exec-path=. status
git --config-env=core.pager=X log
git -C elsewhere status
git --git-dir=elsewhere log
git -p log
git log --output=.git/hooks/post-commit
git log --format=%G?
git log --show-signature
git diff --ext-diff
git diff --ext
git diff --output=x
git diff --no-index a b
git diff -O./order
git diff *
git show --textconv
git grep -Oless x
git grep --open-files-in-pager=./evil x
git grep -f x
git ls-remote --upload-pack=./evil .
git clone --upload-pack=./evil . x
git fetch --upload-pack=./evil
git push --receive-pack=./evil
git commit -m x
git rebase --exec=./evil HEAD
git bisect run ./evil
git submodule foreach ./evil
git status --short; ./evil
git
git stat
sort --compress-program=./evil a
sort --compress-prog ./evil a
sort -o .bashrc a
sort -uo x a
sort -T /x a
sort *
sort ''*
sort ""?x
find . -exec ./evil {} +
find . -execdir ./evil
find . -ok ./evil
find . -delete
find . -fprint x
find . -fprintf x %p
find . -name *.py
find *
find . -files0-from x
rg --pre=./evil x
rg --pre ./evil x
rg --hostname-bin=./evil x
rg -z x
rg -f x
tree -o x
tree -R -H . -L 1
diff -l a b
diff --to-file=x a
file -C -m magic
file -z a
uniq a b
tee x
sed -n e
sed -n 1p
awk 'BEGIN{system("./evil")}'
env ls
env -S 'ls ./evil'
A=1 ls
PATH=. ls
LD_PRELOAD=./evil.so ls
'A'=1 ls
xargs ls
xargs -a x ls
sh -c ls
bash ls
python -c 1
python3 x.py
perl -e 1
node x.js
ssh host ls
sudo ls
doas ls
nohup ls
nice ls
time ls
timeout 5 ls
command ls
builtin echo x
exec ls
eval ls
source a
. a
make
make -f evil.mk
make test
npm run build
npm test
npx x
pytest
pytest -p evil
cargo test
go test ./...
pip install x
tar --checkpoint-action=exec=./evil -cf x .
tar -I ./evil -xf x
zip a b -TT ./evil
rsync -e ./evil a b
scp -S ./evil a b
curl -o x y
wget --use-askpass=./evil x
less x
man x
vim x
date -s x
hostname x
mount x
rm a
cp a b
mv a b
ln -s a b
chmod +x a
dd if=a of=b
printf -v 'a[$(./evil)]' x
test -v 'a[$(./evil)]'
[ -v 'a[$(./evil)]' ]
read x
export A=1
alias ls=./evil
trap ./evil EXIT
cd x
./ls
/bin/ls
bin/ls
~/ls
\\ls
ls \\; ./evil
ls | ./evil
ls |& ./evil
ls; ./evil
ls & ./evil
ls && ./evil
ls || ./evil
ls $(./evil)
ls `./evil`
ls "$(./evil)"
ls "`./evil`"
ls ${x}
ls $x
ls "$x"
ls $'a'
ls $"a"
ls > x
ls >> x
ls 2> x
ls &> x
ls < x
ls <(./evil)
ls <<< x
ls {a,b}
ls (a)
( ls )
{ ls; }
! ls
ls # x
ls #; ./evil
if ls
while ls
coproc ls
function ls
ls 'a
ls "a
echo a\u00a0b
ls\u2028./evil
"""
CONTROLS = ["ls\n./evil", "ls\r./evil", "ls \\\n./evil", "ls\0;./evil", "ls\x0b./evil", "ls\x1b[31m", "ls\x85./evil",
            "\nls\n./evil", "cat <<'E'\nx\nE\n./evil", "cat <<E\n$(./evil)\nE", "cat <<'E'\nx\nE"]  # fmt: skip
TEXTS = [line for line in ALONE.strip("\n").split("\n") if line] + CONTROLS


@pytest.mark.parametrize("words", SAME)
def test_what_runs_the_same_is_one(words: str) -> None:
    for text in SAME[words]:
        assert shell_parse.prefix(text) == words, text
        pattern, shown = patterns.of_command(text)
        assert words in shown
        assert all(patterns.fits_command(other, pattern) for other in SAME[words])


@pytest.mark.parametrize("text", TEXTS)
def test_what_may_run_anything_is_remembered_by_its_whole_text(text: str) -> None:
    assert shell_parse.prefix(text) is None
    pattern, shown = patterns.of_command(text)
    assert (pattern, shown) == (f"={text}", "this command")
    assert patterns.fits_command(text, pattern)
    for changed in (text + " ", text + " x", text[:-1], f"{text}\n./evil", f"{text}; ./evil"):
        assert not patterns.fits_command(changed, pattern)


def test_no_word_for_one_holds_for_another() -> None:
    everything = [*itertools.chain.from_iterable(SAME.values()), *TEXTS]
    family = {text: words for words, texts in SAME.items() for text in texts}
    for one, other in itertools.permutations(everything, 2):
        if patterns.fits_command(other, patterns.of_command(one)[0]):
            assert family.get(one, one) == family.get(other, other), (one, other)


@pytest.mark.parametrize("kept", ["git *", "npm run *", "python3 *", "make *", "*", "ls; *", " *", "", "sort -o *"])
def test_what_an_older_version_kept_holds_for_nothing_more(kept: str) -> None:
    assert not any(patterns.fits_command(text, kept) for text in TEXTS)


PIECES = [
    "ls", "cat", "echo", "git", "status", "log", "sort", "find", "touch", "-n", "-o", "--output=x", "-exec", " ", "  ", "\t", "\n",
     "'", '"', "\\", "$", "$(", ")", "`", "(", ";", "&", "|", "<", ">", "{", "}", ",", "*", "?", "[", "]", "!", "#", "=", "~",
     "A=1", "--", "-", "a", "b c", "\u00e9", "\u00a0", "\x0b", "\r", "<<'E'\nE", "x",
]  # fmt: skip


def alone(commands: list[str], folder: Path) -> list[list[list[str]]]:
    """What a real shell runs of each, and with which words: no program can be found, so each try is told."""
    bash = shutil.which("bash")
    assert bash is not None
    stubs = "".join(f'{name}() {{ told {name} "$@"; }}; ' for name in ("echo", "pwd", "true", "false"))
    script = [
        "told() { printf '%s\\x1f' \"$@\" >> \"$OUT\"; printf '\\x1e' >> \"$OUT\"; }",
        'command_not_found_handle() { told "$@"; }', stubs, "PATH=/nonexistent", "set -f",
    ]  # fmt: skip
    for text in commands:
        script += ["IFS= read -r -d '' TEXT <<'=END='", text, "=END=", 'eval "$TEXT"', "printf '\\x1d' >> \"$OUT\""]
    out, file = folder / "told", folder / "script"
    file.write_text("\n".join(script), newline="")
    subprocess.run(
        [bash, "--norc", str(file)],
        cwd=folder, env={"OUT": str(out), "LC_ALL": "C.UTF-8"}, timeout=120, check=False, capture_output=True,
    )  # fmt: skip
    return [
        [run.split("\x1f")[:-1] for run in told.split("\x1e")[:-1]]
        for told in out.read_text(errors="surrogateescape").split("\x1d")[:-1]
    ]


def test_a_real_shell_runs_one_program_with_the_words_that_were_read(tmp_path: Path) -> None:
    chance = random.Random(20)
    texts = ["".join(chance.choices(PIECES, k=chance.randrange(9))) for _ in range(20_000)]
    commands = [f"{name} {text}" for name, text in zip(itertools.cycle(["ls", "git log", "find"]), texts, strict=False)]
    commands = list(dict.fromkeys(text for text in (*texts, *commands) if shell_parse.prefix(text) is not None))[:3_000]
    assert len(commands) > 1_000
    runs = alone(commands, tmp_path)
    assert len(runs) == len(commands)
    for text, ran in zip(commands, runs, strict=True):
        (words,) = ran
        assert words == shell_parse.plain(text) or "~" in text, text
        assert words[0] == text.split()[0].replace("'", "").replace('"', ""), text
