"""A repository agent that decrypts model folders with a key from the environment, and the command that encrypts them.

All files of a model but config.pbtxt, which names the agent, are encrypted by AES-256-GCM: 12 bytes nonce, the encrypted bytes,
16 bytes tag. The path in the folder is authenticated with them, so no file can take another one's place.

Use: MODEL_KEY=... python -m tpy_decrypt FOLDER TARGET
"""

import os
import shutil
import sys
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tpy.errors import InvalidArgument
from tpy.repository_agent import AgentAction

CLEAR = "config.pbtxt"
NONCE_BYTES = 12


class DecryptAgent:
    """The parameter `variable` names the variable of the server's environment that has the key; default: MODEL_KEY."""

    def act(self, action, model):
        if action is not AgentAction.LOAD:
            return
        variable = model.parameters.get("variable", "MODEL_KEY")
        cipher = AESGCM(key_of(variable))
        folder = model.acquire()
        for name, content in files_of(model.directory, folder):
            try:
                content = cipher.decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], name.encode())
            except (InvalidTag, ValueError):
                raise InvalidArgument(f"'{name}' was changed, or was not encrypted with the key in {variable}") from None
            (folder / name).write_bytes(content)
        model.use(folder)


def encrypt(source, target, key):
    """Make `target`, which must not exist, from the model folder `source`."""
    cipher = AESGCM(key)
    target.mkdir(parents=True)
    for name, content in files_of(source, target):
        nonce = os.urandom(NONCE_BYTES)  # never twice with one key
        (target / name).write_bytes(nonce + cipher.encrypt(nonce, content, name.encode()))


def files_of(source, target):
    """Yields name and content of each file but config.pbtxt, which is copied to `target`; folders are made there."""
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_dir():
            (target / name).mkdir()
        elif name == CLEAR:
            shutil.copyfile(path, target / name)
        else:
            yield name, path.read_bytes()


def key_of(variable):
    """Returns the key that a variable of the environment has in hexadecimal digits."""
    try:
        key = bytes.fromhex(os.environ[variable])
    except (KeyError, ValueError):
        key = b""
    if len(key) != 32:
        raise InvalidArgument(f"{variable} has to be a key of 64 hexadecimal digits")
    return key


if __name__ == "__main__":
    encrypt(Path(sys.argv[1]), Path(sys.argv[2]), key_of("MODEL_KEY"))
