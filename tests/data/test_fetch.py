"""Downloads against a local server: right, wrong, broken, refused."""

import hashlib
import http.server
import os
import socket
import struct
import threading

import pytest

from dubito.data import DataError
from dubito.data.fetch import Remote, digest, fetch

CONTENT = bytes(range(256)) * 3000
TABLE = b"1 2.5\n3\t4e-1\n"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/missing":
            return self.send_error(404)
        body = TABLE if self.path == "/table" else CONTENT
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path == "/short":
            self.wfile.write(body[: len(body) // 2])
        elif self.path == "/reset":
            self.wfile.write(body[: len(body) // 2])
            # Lingering for zero seconds makes the kernel send RST instead of FIN when the descriptor is closed.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        else:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture
def refused():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/file"


def remote(*urls, content=CONTENT, kind="sha256"):
    return Remote(urls, f"{kind}:{hashlib.new(kind, content).hexdigest()}")


def test_a_good_file_arrives_whole(server, tmp_path):
    target = tmp_path / "deep" / "file.gz"
    fetch(remote(f"{server}/file"), target)
    assert target.read_bytes() == CONTENT and [p.name for p in target.parent.iterdir()] == ["file.gz"]
    fetch(remote(f"{server}/file", kind="md5"), target)


def test_the_next_address_is_tried(server, refused, tmp_path):
    fetch(remote(refused, f"{server}/short", f"{server}/missing", f"{server}/file"), tmp_path / "file.gz")
    assert (tmp_path / "file.gz").read_bytes() == CONTENT


def failure(source, folder):
    target = folder / "file.gz"
    with pytest.raises(DataError) as caught:
        fetch(source, target)
    assert list(folder.iterdir()) == []
    message = str(caught.value)
    assert "\n" not in message and str(target) in message and message.endswith(".")
    return message


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    assert "wrong checksum" in failure(remote(f"{server}/file", content=b"other"), tmp_path)


def test_a_broken_transfer_leaves_nothing(server, tmp_path):
    assert f"after {len(CONTENT) // 2:,} of {len(CONTENT):,} bytes" in failure(remote(f"{server}/short"), tmp_path)


def test_a_reset_connection_leaves_nothing(server, tmp_path):
    assert "reset by peer" in failure(remote(f"{server}/reset"), tmp_path)


def test_no_network_leaves_nothing(refused, tmp_path):
    assert "no connection" in failure(remote(refused), tmp_path)


def test_a_missing_file_is_told(server, tmp_path):
    assert "404" in failure(remote(f"{server}/missing"), tmp_path)


def test_a_wrong_file_never_replaces_an_old_one(server, tmp_path):
    target = tmp_path / "file.gz"
    target.write_bytes(b"old")
    with pytest.raises(DataError):
        fetch(remote(f"{server}/file", content=b"other"), target)
    assert target.read_bytes() == b"old"


def test_an_unwritable_place_is_told(server, tmp_path):
    (tmp_path / "taken").write_bytes(b"a file where a folder should be")
    with pytest.raises(DataError, match=r"cannot write .*DUBITO_DATA"):
        fetch(remote(f"{server}/file"), tmp_path / "taken" / "file.gz")


def test_numbers_can_be_verified_instead_of_bytes(server, tmp_path):
    same = tmp_path / "same.txt"
    same.write_text("1.0 2.50\n\n3 0.4")
    expected = digest(same, "values")
    fetch(Remote((f"{server}/table",), expected), tmp_path / "table.txt")
    same.write_text("1.0 2.50\n3 0.5\n")
    other = tmp_path / "other"
    other.mkdir()
    assert "wrong checksum" in failure(Remote((f"{server}/table",), digest(same, "values")), other)
    assert "not a table" in failure(Remote((f"{server}/file",), expected), other)
