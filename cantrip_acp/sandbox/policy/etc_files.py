"""Sandbox /etc: only the files that programs need, copied from the host's /etc by name.

For root, the host's own /etc would show password hashes, private keys and passwords of services. One prepared folder
is also one mount instead of thirty.
"""

from __future__ import annotations

import os
import shutil
import stat

COPIED = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "locale.alias", "locale.conf",
    "services", "protocols", "ethers", "rpc", "host.conf", "gai.conf", "mime.types", "magic", "magic.mime", "inputrc",
    "bash.bashrc", "bashrc", "profile", "shells", "terminfo", "os-release", "debian_version", "lsb-release",
    "redhat-release", "fedora-release", "alpine-release", "arch-release", "system-release", "SuSE-release",
    "ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "ca-certificates", "ca-certificates.conf",
    "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted", "crypto-policies",
    "fonts", "python3", "perl", "java-8-openjdk", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk",
    "java-25-openjdk", "jvm", "emacs", "vim", "R", "texmf", "ImageMagick-6", "ImageMagick-7", "gimp", "sgml", "xml",
    "nanorc", "lynx", "groff", "manpath.config", "papersize", "mailcap", "php", "ghc", "dotnet", "mono", "maven",
    "matplotlibrc", "OpenCL", "vulkan", "glvnd",
)  # fmt: skip
_LARGEST = 2 * 1024 * 1024
_MOST = 4000


def prepare(folder: str, *, user: str, uid: int, gid: int, home: str, shell: str, network: bool) -> None:
    """Fill ``folder`` (empty, ours) with the /etc of a sandbox."""
    files = {
        "passwd": f"root:x:0:0:root:/root:/bin/sh\n{user}:x:{uid}:{gid}::{home}:{shell}\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\n{user}:x:{gid}:\nnogroup:x:65534:\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n"
        "protocols: files\nservices: files\nethers: files\nrpc: files\n",
        "hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
        "hostname": "sandbox\n",
        "resolv.conf": "",
        "machine-id": "",
    }
    if uid == 0:
        files["passwd"] = (
            f"root:x:0:0:root:{home}:{shell}\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        )
        files["group"] = "root:x:0:\nnogroup:x:65534:\n"
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    if network:
        for name in ("resolv.conf", "hosts"):
            _copy(f"/etc/{name}", os.path.join(folder, name), [_MOST])
    left = [_MOST]
    for name in COPIED:
        target = os.path.join(folder, name)
        if not os.path.lexists(target) and os.path.lexists(f"/etc/{name}"):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _copy(f"/etc/{name}", target, left)
    if not os.path.lexists(os.path.join(folder, "mtab")):
        os.symlink("/proc/self/mounts", os.path.join(folder, "mtab"))


def _copy(source: str, target: str, left: list[int]) -> None:
    """Copy what everybody may read. Links to /usr, or to a file beside them, stay links."""
    left[0] -= 1
    if left[0] < 0:
        return
    try:
        status = os.lstat(source)
        if stat.S_ISLNK(status.st_mode):
            to = os.readlink(source)
            # The link means the same inside.
            if to.startswith("/usr/") or "/" not in to:
                os.symlink(to, target)
                return
            real = os.path.realpath(source)
            if real.startswith(("/usr/", "/etc/alternatives/", "/etc/ssl/", "/etc/pki/", "/etc/java")):
                os.symlink(to, target)
                return
            status = os.stat(source)
        if stat.S_ISDIR(status.st_mode):
            if status.st_mode & 0o005 != 0o005:
                return
            os.makedirs(target, exist_ok=True)
            for name in os.listdir(source):
                _copy(f"{source}/{name}", f"{target}/{name}", left)
        elif stat.S_ISREG(status.st_mode) and status.st_mode & 0o004 and status.st_size <= _LARGEST:
            shutil.copyfile(source, target)
            os.chmod(target, 0o755 if status.st_mode & 0o001 else 0o644)
    except OSError:
        # What cannot be copied is not visible inside.
        return
