"""Which commands a user's word for good holds for: what an attacker would hide behind a word that was given for another."""

import itertools

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
        assert shell_parse.command_prefix(text) == words, text
        pattern, shown = patterns.pattern_of_command(text)
        assert words in shown
        assert all(patterns.command_matches(other, pattern) for other in SAME[words])


@pytest.mark.parametrize("text", TEXTS)
def test_what_may_run_anything_is_remembered_by_its_whole_text(text: str) -> None:
    assert shell_parse.command_prefix(text) is None
    pattern, shown = patterns.pattern_of_command(text)
    assert (pattern, shown) == (f"={text}", "this command")
    assert patterns.command_matches(text, pattern)
    for changed in (text + " ", text + " x", text[:-1], f"{text}\n./evil", f"{text}; ./evil"):
        assert not patterns.command_matches(changed, pattern)


def test_no_word_for_one_holds_for_another() -> None:
    everything = [*itertools.chain.from_iterable(SAME.values()), *TEXTS]
    family = {text: words for words, texts in SAME.items() for text in texts}
    for one, other in itertools.permutations(everything, 2):
        if patterns.command_matches(other, patterns.pattern_of_command(one)[0]):
            assert family.get(one, one) == family.get(other, other), (one, other)


@pytest.mark.parametrize("kept", ["git *", "npm run *", "python3 *", "make *", "*", "ls; *", " *", "", "sort -o *"])
def test_what_an_older_version_kept_holds_for_nothing_more(kept: str) -> None:
    assert not any(patterns.command_matches(text, kept) for text in TEXTS)
