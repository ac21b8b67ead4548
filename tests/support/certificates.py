"""Certificates for tests, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

#: Marks tests that need them.
with_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def openssl(folder: Path, *words: str) -> None:
    """Run openssl in a folder."""
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def write_certificates(folder: Path) -> Path:
    """Write an authority, ca.pem, and a certificate of its for this machine, cert.pem and key.pem."""
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(
        folder, "req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2"
    )
    openssl(folder, "req", *new, "-keyout", "key.pem", "-out", "cert.csr", "-subj", "/CN=broker")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    signed = ["-req", "-in", "cert.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
    openssl(folder, "x509", *signed, "-out", "cert.pem", "-extfile", "names")
    return folder
