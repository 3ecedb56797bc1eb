#!/bin/bash
# Other libraries and tools that stand before the C library, each before the drop-in and behind it: a faked time, users
# and sockets, faked roots, tracers of calls and of allocations. And PHP, whose extensions are opened with
# RTLD_DEEPBIND. Output: what the programs print, which depends on no library.
. "$(dirname "$0")/common.sh"

cat >program.sh <<'S'
id -u
date +%Y
seq 300000 | sort -r | md5sum
python3 - <<'P'
import hashlib, os, socket, threading
results = {}
def fill(i):
    b = bytearray(i * 100000)
    b[::4096] = b"x" * len(b[::4096])
    results[i] = hashlib.md5(b).hexdigest()
threads = [threading.Thread(target=fill, args=(i,)) for i in range(1, 9)]
for t in threads: t.start()
for t in threads: t.join()
print(sorted(results.items()))
server = socket.create_server(("127.0.0.10", 0))
client = socket.create_connection(server.getsockname())
peer = server.accept()[0]
threading.Thread(target=lambda: (client.sendall(bytes(1 << 22)), client.close())).start()
got = 0
while (n := len(peer.recv(1 << 20))): got += n
print(got)
pid = os.fork()
if pid == 0:
    os._exit(len(bytes(1 << 22)) != 1 << 22)
print(os.waitpid(pid, 0)[1])
P
S
# both NAME=VALUE... LIBRARY: the program with the library before and behind the drop-in.
both()
{
	local library=${*: -1} order
	for order in "$library:${DROPIN:-}" "${DROPIN:-}:$library"; do
		echo "$library"
		LD_PRELOAD=$order env "${@:1:$#-1}" bash program.sh
	done
}
mkdir sockets
both FAKETIME='2020-01-01 00:00:00' /usr/lib/*/faketime/libfaketime.so.1
both UID_WRAPPER=1 UID_WRAPPER_ROOT=1 libuid_wrapper.so
both SOCKET_WRAPPER_DIR="$work/sockets" SOCKET_WRAPPER_DEFAULT_IFACE=10 libsocket_wrapper.so
drop fakeroot bash program.sh
drop fakechroot bash program.sh
drop ltrace -f -o calls -e malloc bash program.sh
drop heaptrack -o allocations bash program.sh | grep -v heaptrack | sed -n '1,/^0$/p'

cat >program.php <<'S'
<?php
$doc = new DOMDocument();
$root = $doc->appendChild($doc->createElement("r"));
for ($i = 0; $i < 20000; $i++) $root->appendChild($doc->createElement("e", "v$i"));
echo md5($doc->saveXML()), "\n", mb_strlen(str_repeat("ä", 1000000)), "\n";
$zip = new ZipArchive();
$zip->open("t.zip", ZipArchive::CREATE);
$zip->addFromString("a", str_repeat("abc", 1000000));
echo $zip->close(), "\n";
$names = ["ö", "a", "z"];
(new Collator("de"))->sort($names);
echo join(",", $names), "\n";
S
drop php program.php
