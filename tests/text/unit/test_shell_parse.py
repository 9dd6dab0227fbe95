"""Which commands a user's word for good holds for: what an attacker would hide behind a word that was given for another."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.acp.permissions import patterns
from cantrip_acp.text import shell_parse

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


DIVIDED = {
    "git status && git diff --stat": ["git status *", "git diff *"],
    "ls; ls -la": ["ls *"],
    "ls ; cat a ;": ["ls *", "cat *"],
    "git log --oneline | head -5": ["git log *", "head *"],
    "pytest -q 2>&1 | tail -5": ["=pytest -q", "tail *"],
    "pytest -q 2>&1": ["=pytest -q"],
    "pytest -q >/dev/null 2>&1": ["=pytest -q"],
    "make test > /dev/null && echo ok || echo bad": ["=make test", "echo *"],
    "cat a | grep x | sort -u | wc -l": ["cat *", "grep *", "sort *", "wc *"],
    "grep -rn 'a|b;c&&d' src | head": ["grep *", "head *"],
    'echo "a; rm x" && ls': ["echo *", "ls *"],
    "cd web && npm test": ["=cd web && npm test"],
    "cd web && npm test | tail -3": ["=cd web && npm test", "tail *"],
    "cd a/b && ls && git status": ["ls *", "=cd a/b && git status"],
    "git add -A && git commit -m 'a; b'": ["=git add -A", "=git commit -m 'a; b'"],
    "ls; ./evil": ["ls *", "=./evil"],
    "git status; rm -rf x": ["git status *", "=rm -rf x"],
    "git status || rm -rf x": ["git status *", "=rm -rf x"],
    "git -c core.pager=./evil status; ls": ["=git -c core.pager=./evil status", "ls *"],
    # What reads from a pipe is one with what it reads.
    "echo x | python": ["=echo x | python"],
    "cat a | ./evil | head": ["=cat a | ./evil | head"],
    "ls && echo x | tee y": ["ls *", "=echo x | tee y"],
}
WHOLE = r"""
git status > ~/.bashrc
git status >> x
git status; ls > x
git status && ls 2> err
ls < a | wc -l
ls | wc -l >| x
ls &> x; ls
ls 2>&1x; ls
ls >/dev/null/../x; ls
ls >/dev/nullx; ls
ls >&x; ls
ls x2>&1; ls
FOO=$(rm x) git status
FOO=1 git status; ls
ls; PATH=. ls
ls; 'A'=1 ls
ls && $(rm x)
ls && `rm x`
ls && "$(rm x)"
ls "`rm x`"; ls
ls; echo $x
ls; echo $'a;b'
ls; eval rm
ls; exec rm
ls; source x
ls; . x
ls && sh -c 'rm x'
ls && bash x
echo x | sh
echo x | /bin/sh
echo x | bash -s
find . | xargs rm
ls; env rm x
ls; sudo rm x
ls; timeout 5 rm x
ls; nohup rm x
ls; time rm x
ls; command rm x
ls; builtin eval rm
ls; alias ls=rm
alias ls=rm; ls
ls() { rm x; }; ls
function ls { rm x; }; ls
export PATH=.; ls
set -a; ls
shopt -s expand_aliases; ls
hash -p ./evil ls; ls
enable -f ./evil.so ls; ls
trap ./evil EXIT; ls
unset x; ls
read x; ls
printf -v PATH . ; ls
test -v 'a[$(rm x)]' && ls
[ -v x ] && ls
[[ -v x ]] && ls
if ls; then rm x; fi
for x in a; do rm x; done
while ls; do rm x; done
until ls; do rm x; done
case x in x) rm;; esac
coproc ls; ls
! ls; ls
{ ls; rm x; }
( ls; rm x )
ls &
ls & rm x
ls |& cat
ls ;; ls
ls &&& ls
ls ||| ls
ls && && ls
&& ls
ls |
; ls
ls; # rm
ls # ; rm
ls <(rm x) | cat
ls; cat <<< x
ls 'a; rm
ls "a; rm
ls \; rm x
ls; rm l\s; ls
ls; *
ls; ?s
ls; [l]s
ls; {ls,x}
ls; ~/ls
ls; -x
cd .. && ls
cd a/../.. && ls
cd /etc && ls
cd - && ls
cd ~ && ls
cd && ls
cd a b && ls
cd a; ls
cd a || ls
cd a | ls
cd a && ls || rm x
cd a && ls; rm x
ls && cd a && rm x
cd a && cd b && rm x
pushd a && ls
cd * && ls
ls ; еcho x
ls; rm x
"""
WHOLE_TEXTS = [
    *(line for line in WHOLE.strip().split("\n")),
    "ls;\nrm x", "ls\nrm x", "ls &&\\\nrm x", "ls; rm\rx", "ls; r\0m", "ls; \x0brm x", "cat <<'E' | sh\nrm x\nE",
    "ls; cat <<E\n$(rm)\nE",
]  # fmt: skip


@pytest.mark.parametrize("text", DIVIDED)
def test_a_compound_command_has_a_rule_for_each_part(text: str) -> None:
    assert patterns.patterns_of_parts(text) == DIVIDED[text]


@pytest.mark.parametrize("text", WHOLE_TEXTS)
def test_what_is_not_fully_understood_is_not_divided(text: str) -> None:
    assert patterns.patterns_of_parts(text) == []
    assert patterns.pattern_of_command(text)[0] == f"={text}"


_PART = st.sampled_from(
    ["ls -la", "git status", "git diff", "cat a", "grep 'a;b|c' x", "pytest -q", "rm -rf x", "./evil", "head -3", 'echo "a && b"']
)  # fmt: skip
_OPERATOR = st.sampled_from([" && ", " || ", "; ", ";", " | ", "&&", "|"])
_HOSTILE = st.sampled_from(
    ["$(rm x)", "`rm x`", "> x", ">> ~/.bashrc", "< x", "&", "\n", "\\", "(", ")", "{", "#", "!",
     "$x", "\0", "é"]
)  # fmt: skip


@given(st.lists(st.tuples(_OPERATOR, _PART), min_size=1, max_size=5), _PART)
def test_the_rules_cover_every_part(more: list[tuple[str, str]], first: str) -> None:
    text = first + "".join(operator + part for operator, part in more)
    rules = patterns.patterns_of_parts(text)
    assert rules
    for part in {first, *(part for _, part in more)}:
        own = patterns.pattern_of_command(part)[0]
        # A part has its own rule, or is in the exact text of its pipeline.
        assert own in rules or any(rule.startswith("=") and part in rule for rule in rules)


@given(st.lists(st.tuples(_OPERATOR, _PART), max_size=3), _PART, _HOSTILE)
def test_hostile_syntax_at_the_end_leaves_only_the_whole(more: list[tuple[str, str]], first: str, hostile: str) -> None:
    text = first + "".join(operator + part for operator, part in more)
    assert patterns.patterns_of_parts(f"{text} {hostile}") == []
    assert patterns.patterns_of_parts(f"{text} {hostile} ls") == []


def test_a_rule_for_a_command_never_covers_another_part() -> None:
    for text in ("git status; rm -rf x", "git status | rm x", "ls && git status; ./evil"):
        assert set(patterns.patterns_of_parts(text)) - {"git status *", "ls *"}


def test_no_word_for_one_holds_for_another() -> None:
    everything = [*itertools.chain.from_iterable(SAME.values()), *TEXTS]
    family = {text: words for words, texts in SAME.items() for text in texts}
    for one, other in itertools.permutations(everything, 2):
        if patterns.command_matches(other, patterns.pattern_of_command(one)[0]):
            assert family.get(one, one) == family.get(other, other), (one, other)


@pytest.mark.parametrize("kept", ["git *", "npm run *", "python3 *", "make *", "*", "ls; *", " *", "", "sort -o *"])
def test_what_an_older_version_kept_holds_for_nothing_more(kept: str) -> None:
    assert not any(patterns.command_matches(text, kept) for text in TEXTS)
