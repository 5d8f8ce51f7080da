"""A scripted stand-in for object storage, in this process: buckets in memory, and faults on demand.

    with FakeS3() as fake:
        fake.fail("GET", "name", status(503, "SlowDown"), times=2)
        run a program with fake.environment()
        fake.objects["prefix/name"], fake.requests

It answers as S3 does where nothing was planted: PUT, ranged GET, HEAD, DELETE, ListObjectsV2, multipart. It checks
Content-MD5 and the payload's SHA-256, but no signatures: the tests against a real server do that. There is one bucket.
"""
import base64
import hashlib
import http.server
import re
import socket
import ssl
import struct
import threading
import time
import urllib.parse

BUCKET = "bucket"
XML = b'<?xml version="1.0" encoding="UTF-8"?>\n'


def error_body(code, more=""):
    return XML + f"<Error><Code>{code}</Code><Message>words about {code}</Message><RequestId>r-1</RequestId>{more}</Error>".encode()


# Faults: functions of (handler, act). `act()` does what would have been done and gives (status, headers, body).

def status(number, code="", headers=None, more=""):
    """Answers with an error and does nothing."""
    return lambda handler, act: handler.answer(number, dict(headers or {}), error_body(code, more) if code else b"")


def lost(handler, act):
    """Does it, and cuts the connection before the answer."""
    act()
    handler.reset()


def unheard(handler, act):
    """Cuts the connection and does nothing."""
    handler.reset()


def stalled(handler, act):
    """Says nothing until the server is closed."""
    handler.fake.closing.wait()
    handler.reset()


def cut_after(count):
    """Sends the right headers and `count` bytes of the body, then cuts the connection."""
    def cut(handler, act):
        number, headers, body = act()
        handler.head(number, headers, len(body))
        if handler.command != "HEAD":
            handler.wfile.write(body[:count])
        handler.wfile.flush()
        handler.reset()
    return cut


def stalled_after(count):
    """Sends `count` bytes of the body, then nothing more."""
    def stall(handler, act):
        number, headers, body = act()
        handler.head(number, headers, len(body))
        handler.wfile.write(body[:count])
        handler.wfile.flush()
        handler.fake.closing.wait()
        handler.reset()
    return stall


def says(number, body, headers=None, do=False):
    """Answers with that body, whether or not it is true; `do`: and does what was asked."""
    def answer(handler, act):
        if do:
            act()
        handler.answer(number, dict(headers or {}), body)
    return answer


def changed(**how):
    """Does it, and answers with other headers, or with the body that how["body"](body) gives."""
    def answer(handler, act):
        number, headers, body = act()
        change = how.get("body")
        headers.update(how.get("headers", {}))
        handler.answer(how.get("number", number), headers, change(body) if change else body)
    return answer


def garbage(handler, act):
    """Does it, and answers with what is not HTTP."""
    act()
    handler.wfile.write(b"SSH-2.0-not-a-store\r\n")
    handler.close_connection = True


def endless(front, piece):
    """A body without an end."""
    def pour(handler, act):
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(front)
        try:
            while not handler.fake.closing.is_set():
                handler.wfile.write(piece * 100)
        except OSError:
            pass
        handler.close_connection = True
    return pour


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake = None

    def log_message(self, *words):
        pass

    def reset(self):
        """Closes with a reset, as a killed server's kernel may."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def head(self, number, headers, length):
        self.send_response(number)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(length))
        self.send_header("x-amz-request-id", "request-77")
        self.end_headers()

    def answer(self, number, headers, body):
        self.head(number, headers, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (OSError, ValueError):
            self.close_connection = True

    def finish(self):
        try:
            super().finish()
        except (OSError, ValueError):
            pass

    def serve(self):
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
        asked = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        request = {"verb": self.command, "key": key, "query": asked, "headers": dict(self.headers.items()), "body": len(body),
                   "raw": self.path}

        def act():
            return self.fake.act(request, bucket, body)

        fault = self.fake.note(request)
        if fault:
            fault(self, act)
        else:
            self.answer(*act())

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = serve


class FakeS3:
    def __init__(self, conditional="yes", certificate=None):
        """`conditional`: what If-None-Match on a write does: "yes", "ignored", or the error that it gets, as
        (501, "NotImplemented"). `certificate`: a file with key and certificate; then it speaks TLS."""
        self.conditional = conditional
        self.objects = {}  # key: (bytes, headers)
        self.uploads = {}  # id: {"key", "parts": {number: bytes}, "headers", "begun"}
        self.requests = []
        self.faults = []
        self.lock = threading.RLock()
        self.closing = threading.Event()
        handler = type("Bound", (Handler,), {"fake": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda request, address: None
        self.endpoint = f"{'https' if certificate else 'http'}://127.0.0.1:{self.server.server_address[1]}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *what):
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

    def environment(self):
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": "FAKEKEY", "AWS_SECRET_ACCESS_KEY": "fake+secret/words"}

    def fail(self, verb, name, fault, times=1, query=None):
        """The next `times` requests of that verb whose key ends with `name`, and whose query has `query`, get it."""
        with self.lock:
            self.faults.append([verb, name, query, fault, times])

    def note(self, request):
        with self.lock:
            self.requests.append(request)
            for entry in self.faults:
                verb, name, query, fault, left = entry
                if left and verb == request["verb"] and request["key"].endswith(name) and (query is None or query in request["query"]):
                    entry[4] -= 1
                    return fault
        return None

    def seen(self, verb, name="", query=None):
        with self.lock:
            return [r for r in self.requests
                    if r["verb"] == verb and r["key"].endswith(name) and (query is None or query in r["query"])]

    # What a sound server does: (status, headers, body).

    def act(self, request, bucket, body):
        with self.lock:
            if bucket != BUCKET:
                return 404, {}, error_body("NoSuchBucket")
            headers = {k.lower(): v for k, v in request["headers"].items()}
            digest = headers.get("content-md5")
            if digest and base64.b64encode(hashlib.md5(body).digest()).decode() != digest:
                return 400, {}, error_body("BadDigest")
            if headers.get("x-amz-content-sha256") not in (None, "UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
                return 400, {}, error_body("XAmzContentSHA256Mismatch")
            does = getattr(self, "_" + request["verb"].lower())
            return does(request["key"], request["query"], headers, body)

    def refuses(self, key, headers):
        if headers.get("if-none-match") != "*" and headers.get("x-goog-if-generation-match") != "0":
            return None
        if isinstance(self.conditional, tuple):
            return self.conditional[0], {}, error_body(self.conditional[1])
        if self.conditional == "yes" and key in self.objects:
            return 412, {}, error_body("PreconditionFailed")
        return None

    def _store(self, key, body, headers, etag):
        kept = {k: v for k, v in headers.items() if k.startswith(("x-amz-meta-", "x-goog-meta-"))}
        self.objects[key] = (body, {"ETag": etag, **kept})
        return etag

    def _put(self, key, query, headers, body):
        if "uploadId" in query:
            upload = self.uploads.get(query["uploadId"])
            if not upload or upload["key"] != key:
                return 404, {}, error_body("NoSuchUpload")
            upload["parts"][int(query["partNumber"])] = body
            return 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b""
        refusal = self.refuses(key, headers)
        if refusal:
            return refusal
        return 200, {"ETag": self._store(key, body, headers, f'"{hashlib.md5(body).hexdigest()}"')}, b""

    def _post(self, key, query, headers, body):
        if "uploads" in query:
            name = f"upload/{len(self.uploads) + 1}+="
            self.uploads[name] = {"key": key, "parts": {}, "headers": headers, "begun": time.time()}
            return 200, {}, XML + (f"<InitiateMultipartUploadResult><Bucket>{BUCKET}</Bucket><Key>{key}</Key>"
                                   f"<UploadId>{name}</UploadId></InitiateMultipartUploadResult>").encode()
        upload = self.uploads.get(query["uploadId"])
        if not upload or upload["key"] != key:
            return 404, {}, error_body("NoSuchUpload")
        refusal = self.refuses(key, headers)
        if refusal:
            return refusal
        listed = re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>&quot;(\w+)&quot;</ETag>", body.decode())
        digests = b""
        for number, etag in listed:
            part = upload["parts"].get(int(number))
            if part is None or hashlib.md5(part).hexdigest() != etag:
                return 400, {}, error_body("InvalidPart")
            digests += hashlib.md5(part).digest()
        whole = b"".join(upload["parts"][int(number)] for number, _ in listed)
        etag = self._store(key, whole, upload["headers"], f'"{hashlib.md5(digests).hexdigest()}-{len(listed)}"')
        del self.uploads[query["uploadId"]]
        return 200, {}, XML + f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>".encode()

    def _head(self, key, query, headers, body):
        return self._get(key, query, headers, body)

    def _get(self, key, query, headers, body):
        if not key:
            return self._uploads(query) if "uploads" in query else self._list(query)
        if key not in self.objects:
            return 404, {}, error_body("NoSuchKey")
        whole, kept = self.objects[key]
        if headers.get("if-match", kept["ETag"]) != kept["ETag"]:
            return 412, {}, error_body("PreconditionFailed")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        if not wanted:
            return 200, dict(kept), whole
        first, last = int(wanted[1]), min(int(wanted[2]), len(whole) - 1)
        if first > last:
            return 416, {"Content-Range": f"bytes */{len(whole)}"}, error_body("InvalidRange")
        return 206, {"Content-Range": f"bytes {first}-{last}/{len(whole)}", **kept}, whole[first:last + 1]

    def _list(self, query):
        names = sorted(k for k in self.objects if k.startswith(query.get("prefix", "")) and k > query.get("continuation-token", ""))
        page = names[:int(query.get("max-keys", 1000))]
        more = len(page) < len(names)
        rows = "".join(f"<Contents><Key>{n.replace('&', '&amp;')}</Key><LastModified>2026-01-31T12:00:00.000Z</LastModified>"
                       f"<Size>{len(self.objects[n][0])}</Size></Contents>" for n in page)
        token = f"<NextContinuationToken>{page[-1].replace(chr(38), chr(38) + 'amp;')}</NextContinuationToken>" if more else ""
        return 200, {}, XML + f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{rows}{token}</ListBucketResult>".encode()

    def _uploads(self, query):
        after = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
        names = sorted((u["key"], i) for i, u in self.uploads.items()
                       if u["key"].startswith(query.get("prefix", "")) and (u["key"], i) > after)
        page = names[:int(query.get("max-uploads", 1000))]
        rows = "".join(f"<Upload><Key>{k}</Key><UploadId>{i}</UploadId><Initiated>"
                       f"{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(self.uploads[i]['begun']))}</Initiated></Upload>"
                       for k, i in page)
        more = len(page) < len(names)
        marks = f"<NextKeyMarker>{page[-1][0]}</NextKeyMarker><NextUploadIdMarker>{page[-1][1]}</NextUploadIdMarker>" if more else ""
        return 200, {}, XML + (f"<ListMultipartUploadsResult><IsTruncated>{str(more).lower()}</IsTruncated>{marks}{rows}"
                               f"</ListMultipartUploadsResult>").encode()

    def _delete(self, key, query, headers, body):
        if "uploadId" in query:
            return (204, {}, b"") if self.uploads.pop(query["uploadId"], None) else (404, {}, error_body("NoSuchUpload"))
        self.objects.pop(key, None)
        return 204, {}, b""
