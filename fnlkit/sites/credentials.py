"""Certificates and keys of a deployment: the server's for TLS, and the key pair with which a site is admitted."""

import datetime
import ipaddress
from typing import Any

from fnlkit.core.errors import InputError

DAYS = 365
_AUTHORITY = "fnlkit federation"


def _crypto():
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise InputError("certificates need Flower, which is not installed; pip install 'fnlkit[flower]' adds it") from error
    return x509, hashes, serialization, ec


def _certificate(name, hosts, key, *, issuer=None, signer=None, authority=False):
    """Make an X.509 certificate; without an issuer it is self-signed."""
    x509, hashes, _, _ = _crypto()
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if hosts:
        made = made.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return made.sign(signer or key, hashes.SHA256())


def _host(text):
    x509 = _crypto()[0]
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate=None, key=None):
    _, _, serialization, _ = _crypto()
    if certificate is not None:
        return certificate.public_bytes(serialization.Encoding.PEM)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def of_server(host: str) -> dict[str, bytes]:
    """Make {file: bytes} of a certificate authority and of a server's certificate for a host name or address.

    The files are ca.crt, ca.key, server.crt and server.key. Only ca.crt is given to sites.
    """
    _, _, _, ec = _crypto()
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _certificate(_AUTHORITY, [], ca_key, authority=True)
    hosts = list(dict.fromkeys([host, "localhost", "127.0.0.1"]))
    certificate = _certificate(host, hosts, key, issuer=authority, signer=ca_key)
    return {"ca.crt": _pem(authority), "ca.key": _pem(key=ca_key), "server.crt": _pem(certificate), "server.key": _pem(key=key)}


def renew(ca_key: bytes, certificate: bytes) -> dict[str, Any]:
    """Renew the certificates {file: bytes}: ca.crt with the same key, and server.crt and server.key for the same hosts.

    Parameters
    ----------
    ca_key, certificate : bytes
        The present ca.key and server.crt, in PEM.
    """
    x509, _, serialization, ec = _crypto()
    signer, key = serialization.load_pem_private_key(ca_key, None), ec.generate_private_key(ec.SECP256R1())
    hosts = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = [str(host.value) for host in hosts]
    authority = _certificate(_AUTHORITY, [], signer, authority=True)
    renewed = _certificate(names[0], names, key, issuer=authority, signer=signer)
    return {"ca.crt": _pem(authority), "server.crt": _pem(renewed), "server.key": _pem(key=key)}


def of_site(name: str) -> dict[str, Any]:
    """Make {file: bytes} of a site: its key pair (NAME.key, NAME.key.pub) and a certificate for the processes of the site.

    The files own.crt and own.key secure the connections between the processes of the site.  Only NAME.key.pub leaves the site.
    """
    _, _, serialization, ec = _crypto()
    key, own_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate("localhost", ["localhost", "127.0.0.1"], own_key, authority=True)
    ssh = serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, ssh, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return {f"{name}.key": private, f"{name}.key.pub": public + f" {name}\n".encode(), "own.crt": _pem(certificate),
            "own.key": _pem(key=own_key)}  # fmt: skip
