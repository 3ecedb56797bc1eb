#!/bin/bash
# Programs from Debian under the drop-in: they end as without it, and print the same.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
export LC_ALL=C HOME=$t GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE='@1700000000 +0000' GIT_COMMITTER_DATE='@1700000000 +0000'
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
cd "$t" || exit 2

# equal NAME COMMAND...: the same status and the same output with and without. Each run in a directory of its own.
equal()
{
	local name=$1 a b
	shift
	if ! command -v "$1" >/dev/null; then
		skip "$name" "$1 is not installed"
		return
	fi
	rm -rf a b
	mkdir a b
	(cd a && timeout -k 5 400 "$@") >a.out 2>a.err </dev/null
	a=$?
	(cd b && with "$@") >b.out 2>b.err </dev/null
	b=$?
	if [ $a = $b ] && cmp -s a.out b.out && [ -s a.out ]; then
		pass "$name"
	else
		fail "$name" "status $a without, $b with" "$(diff a.out b.out | head -5)" "$(tail -5 b.err)"
	fi
}

awk 'BEGIN { x = 12345; for (i = 0; i < 400000; i++) { x = (x * 16807) % 2147483647; printf "%d %x some text of line %d\n", x, x * 31 % 1000003, i } }' >lines

equal 'true' bash -c 'true; echo done'
equal 'sort, one large buffer' bash -c 'sort -S 100M ../lines | md5sum; sort -S 20M --parallel=4 -k2 ../lines | md5sum'
# shellcheck disable=SC2016
equal 'git: objects, packs, history' bash -c '
	set -e
	git init -q -b main .
	for i in 1 2 3 4; do
		head -c $((i * 700000)) ../lines >big
		split -l 9000 -d ../lines part$i.
		git add .
		git commit -q -m "number $i"
	done
	git -c pack.threads=4 gc -q 
	git fsck --full 2>&1
	git log --stat | md5sum
	git clone -q . copy
	git -C copy rev-parse HEAD
	git diff HEAD~3 | md5sum'
# shellcheck disable=SC2016
equal 'perl: strings, hashes, sort' perl -e '
	my (%h, @a); my $s = "";
	for my $i (1..300000) { $h{$i * 7919 % 1000003} = "value $i"; $s .= chr($i % 256) }
	for my $k (sort { $a <=> $b } keys %h) { push @a, $h{$k} }
	my $j = join ",", @a; my $r = reverse $j; $s x= 20; $s =~ s/a/bb/g;
	print unpack("%32C*", $j), " ", unpack("%32C*", $r), " ", length $s, "\n";
	my $pid = fork // die; if (!$pid) { $s .= "child" x 100000; exit length($s) % 7 } waitpid $pid, 0; print "child $?\n"'
equal 'python3: large objects, threads, subprocesses' /usr/bin/python3 -c '
import hashlib, subprocess, threading, zlib, json, multiprocessing
b = bytearray()
for i in range(3000): b += bytes([i % 256]) * (i * 3)
print(len(b), hashlib.sha256(b).hexdigest())
z = zlib.compress(bytes(b)); print(len(zlib.decompress(z)))
d = {str(i): list(range(i % 50)) for i in range(40000)}; j = json.dumps(d); print(len(j), json.loads(j) == d)
out = [0] * 8
def work(i):
    x = [bytes([i]) * (50000 + k * 1000) for k in range(300)]
    out[i] = sum(len(y) + y[-1] for y in x)
ts = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[t.start() for t in ts]; [t.join() for t in ts]; print(out)
print(subprocess.run(["echo", "from a child"], capture_output=True).stdout)
with multiprocessing.get_context("fork").Pool(4) as p: print(sum(p.map(len, [bytes(200000)] * 50)))'
# shellcheck disable=SC2016
equal 'node: buffers, JSON, workers' node -e '
const z = require("zlib"), c = require("crypto"), { Worker } = require("worker_threads");
let a = []; for (let i = 0; i < 300; i++) a.push(Buffer.alloc(40000 + i * 3000, i));
let all = Buffer.concat(a), h = b => c.createHash("sha256").update(b).digest("hex");
console.log(all.length, h(all), h(z.gunzipSync(z.gzipSync(all))));
let o = {}; for (let i = 0; i < 60000; i++) o["k" + i] = [i, "v".repeat(i % 40)];
let s = JSON.stringify(o); console.log(s.length, Object.keys(JSON.parse(s)).length);
let n = 0; for (let i = 0; i < 4; i++) new Worker(`
	let x = []; for (let i = 0; i < 100; i++) x.push(new Float64Array(50000).fill(i));
	require("worker_threads").parentPort.postMessage(x.reduce((s, y) => s + y[49999], 0))`, { eval: true })
	.on("message", m => { n += m }).on("exit", () => { if (--left == 0) console.log("workers", n) });
let left = 4;'
# shellcheck disable=SC2016
equal 'gcc: compile, link, run' bash -c '
	{ echo "#include <stdio.h>"; for i in $(seq 500); do
		echo "static double f$i(double x) { double s = 0; for (int i = 0; i < $i; i++) s += x * i / (s + $i); return s; }"
	done; echo "int main(void) { double s = 0;"; for i in $(seq 500); do echo "s += f$i(s + $i);"; done
	echo "printf(\"%.10g\\n\", s); return 0; }"; } >p.c
	gcc -O2 -o p p.c && ./p && gcc -O1 -S -o - p.c | md5sum'
equal 'xz: a large dictionary, threads' bash -c 'xz -2 -T2 --block-size=4MiB -k -c ../lines >l.xz && xz -dc l.xz | md5sum; md5sum <l.xz'
equal 'tar and gzip' bash -c 'mkdir d && split -l 500 -a 4 ../lines d/x && tar --sort=name --mtime=@0 -cf - d | gzip -n | md5sum'
# shellcheck disable=SC2016
equal 'awk: arrays and long strings' bash -c 'awk "{ a[\$1 % 5003] = a[\$1 % 5003] \$2 } END { for (i = 0; i < 5003; i++) s = s a[i]; print length(s) }" ../lines'

if command -v stress-ng >/dev/null; then
	cd "$t" || exit 2
	works 'stress-ng --malloc' with stress-ng --temp-path "$t" --malloc 2 -t 2 --verify
	works 'stress-ng --malloc, threads, all touched' with stress-ng --temp-path "$t" --malloc 2 --malloc-pthreads 4 \
		--malloc-touch --malloc-bytes 64M --malloc-max 500 -t 2 --verify
	works 'stress-ng --bigheap' with stress-ng --temp-path "$t" --bigheap 1 --bigheap-growth 1M --bigheap-ops 600 -t 5 --verify
	works 'stress-ng --fork' with stress-ng --temp-path "$t" --fork 2 -t 2 --verify
else
	skip 'stress-ng' 'stress-ng is not installed'
fi
