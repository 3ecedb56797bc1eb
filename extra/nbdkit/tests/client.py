"""A client of NBD for nbdkit.sh, which asks what libnbd's programs do not: many requests at a time, of any size and place.

client.py model SOCKET SEED ROUNDS FILE   random requests, compared with a model; FILE is what the server serves
client.py end SOCKET SIGNAL PID FILE      writes until the server has got the signal, then looks for what was lost
client.py ask SOCKET COMMAND AT LEN [FLAG]  one request (FLAG: fua, no-hole): prints ok, or the error's name
client.py shorten SOCKET FILE             asks for what has gone meanwhile: prints ok or the error's name, of what is there, too
client.py crowd SOCKET FILE               24 reads at a time
client.py hints SOCKET                    prints the block sizes"""
import errno, os, random, signal, socket, struct, sys, threading

READ, WRITE, FLUSH, TRIM, ZERO = 0, 1, 3, 4, 6
COMMANDS = {'read': READ, 'write': WRITE, 'flush': FLUSH, 'trim': TRIM, 'zero': ZERO}
FUA, NO_HOLE = 1, 2
FLAGS = {'': 0, 'fua': FUA, 'no-hole': NO_HOLE}
OPTION_GO, INFO_EXPORT, INFO_BLOCK_SIZE = 7, 0, 3
REPLY_ACK, REPLY_INFO = 1, 3

class Connection:
	def __init__(self, path):
		self.socket = socket.socket(socket.AF_UNIX)
		self.socket.connect(path)
		assert self.take(16) == b'NBDMAGICIHAVEOPT'
		self.take(2)
		self.socket.sendall(struct.pack('>I', 3)) # fixed newstyle, no zeroes
		asked = struct.pack('>IHH', 0, 1, INFO_BLOCK_SIZE)
		self.socket.sendall(struct.pack('>8sII', b'IHAVEOPT', OPTION_GO, len(asked)) + asked)
		while True:
			_, _, kind, length = struct.unpack('>QIII', self.take(20))
			info = self.take(length)
			if kind == REPLY_ACK:
				break
			assert kind == REPLY_INFO, kind
			if struct.unpack('>H', info[:2])[0] == INFO_EXPORT:
				self.size = struct.unpack('>Q', info[2:10])[0]
			elif struct.unpack('>H', info[:2])[0] == INFO_BLOCK_SIZE:
				self.hints = struct.unpack('>III', info[2:14])

	def take(self, count):
		data = bytearray()
		while len(data) < count:
			more = self.socket.recv(count - len(data))
			if not more:
				raise ConnectionResetError
			data += more
		return bytes(data)

	def send(self, number, command, at, length, flags=0, data=b''):
		self.socket.sendall(struct.pack('>IHHQQI', 0x25609513, flags, command, number, at, length) + data)

	def receive(self, lengths):
		"""Returns the number of a request, its error and its data. lengths has how much a request reads."""
		magic, error, number = struct.unpack('>IIQ', self.take(16))
		assert magic == 0x67446698
		return number, error, self.take(lengths[number]) if not error and number in lengths else b''

	def ask(self, *request):
		self.send(0, *request)
		_, error, data = self.receive({0: request[2]} if request[0] == READ else {})
		return error, data

	def all(self):
		pieces = []
		for at in range(0, self.size, 1 << 20):
			error, data = self.ask(READ, at, min(1 << 20, self.size - at))
			assert not error, error
			pieces.append(data)
		return bytearray(b''.join(pieces))

def pieces(rnd, size, count):
	"""Ranges side by side, many within the same blocks: from 1 byte to some that are longer than a lane's buffer."""
	at = rnd.randrange(size)
	if rnd.random() < 0.7:
		at -= at % 512
	lengths = 1, 100, 412, 511, 512, 512, 512, 1024
	if rnd.random() < 0.5:
		lengths += 4096, 4096, 5000, 16384, 65536, 70001, 262144, 1500000
	for _ in range(count):
		length = min(rnd.choice(lengths), size - at)
		if not length:
			return
		yield at, length
		at += length

def model(path, seed, rounds, file):
	rnd = random.Random(seed)
	connections = [Connection(path) for _ in range(3)]
	size = connections[0].size
	data = connections[0].all()
	for _ in range(rounds):
		requests = []
		for at, length in pieces(rnd, size, rnd.randrange(1, 40)):
			command = rnd.choice((READ, READ, WRITE, WRITE, WRITE, WRITE, TRIM, ZERO))
			flags = rnd.choice((0, 0, 0, 0, 0, 0, FUA)) if command != READ else 0
			flags |= rnd.choice((0, NO_HOLE)) if command == ZERO else 0
			requests.append((command, at, length, flags, rnd.randbytes(length) if command == WRITE else b''))
		# Each connection has a thread that sends: a server whose replies nobody reads takes no more requests.
		def send(connection, mine):
			for number in mine:
				connection.send(number, *requests[number])
		shares = [range(i, len(requests), len(connections)) for i in range(len(connections))]
		threads = [threading.Thread(target=send, args=pair) for pair in zip(connections, shares)]
		for thread in threads:
			thread.start()
		lengths = {number: request[2] for number, request in enumerate(requests) if request[0] == READ}
		for connection, mine in zip(connections, shares):
			for _ in mine:
				number, error, got = connection.receive(lengths)
				command, at, length, _, written = requests[number]
				assert not error, 'command %d of %d bytes at %d: %s' % (command, length, at, errno.errorcode[error])
				if command == READ:
					assert got == data[at:at + length], 'a read of %d bytes at %d differs' % (length, at)
				elif command == WRITE:
					data[at:at + length] = written
				elif command == ZERO:
					data[at:at + length] = bytes(length)
		for thread in threads:
			thread.join()
		for command, at, length, _, _ in requests:
			if command == TRIM: # what was trimmed is as before, or zero
				_, got = connections[0].ask(READ, at, length)
				assert all(new in (0, old) for new, old in zip(got, data[at:at + length])), 'trimming at %d' % at
				data[at:at + length] = got
	assert connections[1].all() == data, 'read at the end, the data differs'
	assert connections[2].ask(FLUSH, 0, 0)[0] == 0
	with open(file, 'rb') as f:
		assert f.read() == data, 'the file differs'

def end(path, number, pid, file):
	"""Slots side by side, at odd places. Each write fills its slot with another byte. What was answered is there, and of the
	rest each byte is the old one or the new one."""
	rnd = random.Random(pid)
	connections = [Connection(path) for _ in range(3)]
	slots, at = [], 0
	while at < connections[0].size:
		length = min(rnd.choice((700, 4096, 4096, 9000, 16384, 300000)), connections[0].size - at)
		slots.append((at, length, rnd.randrange(len(connections))))
		at += length
	has, asked = [0] * len(slots), [0] * len(slots)
	lock, answers = threading.Lock(), 0

	def work(connection, mine):
		nonlocal answers
		idle, value = list(mine), 0
		try:
			while True:
				rnd.shuffle(idle)
				value = value % 255 + 1
				for slot in idle[:12]:
					at, length, _ = slots[slot]
					asked[slot] = value
					connection.send(slot, WRITE, at, length, rnd.choice((0, 0, 0, FUA)), bytes((value,)) * length)
				for _ in idle[:12]:
					slot, error, _ = connection.receive({})
					assert not error or error == errno.ESHUTDOWN, error
					if error:
						continue
					has[slot] = asked[slot]
					with lock:
						answers += 1
						if answers == 300:
							os.kill(pid, number)
		except OSError:
			pass # the server has gone
	connections[0].ask(ZERO, 0, connections[0].size)
	threads = [threading.Thread(target=work, args=(c, [s for s in range(len(slots)) if slots[s][2] == i]))
		for i, c in enumerate(connections)]
	for thread in threads:
		thread.start()
	for thread in threads:
		thread.join()
	assert answers >= 300
	with open(file, 'rb') as f:
		data = f.read()
	for slot, (at, length, _) in enumerate(slots):
		wrong = set(data[at:at + length]) - {has[slot], asked[slot]}
		assert not wrong, '%d bytes at %d: %s, where %d was written' % (length, at, wrong, has[slot])
	print('%d writes were answered' % answers)

def ask(connection, *request):
	error, _ = connection.ask(*request)
	return errno.errorcode[error] if error else 'ok'

what, path = sys.argv[1:3]
if what == 'model':
	model(path, int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
elif what == 'end':
	end(path, signal.Signals['SIG' + sys.argv[3]], int(sys.argv[4]), sys.argv[5])
elif what == 'ask':
	command, at, length = COMMANDS[sys.argv[3]], int(sys.argv[4]), int(sys.argv[5])
	data = b'x' * length if command == WRITE else b''
	print(ask(Connection(path), command, at, length, FLAGS[''.join(sys.argv[6:])], data))
elif what == 'shorten':
	connection = Connection(path)
	os.truncate(sys.argv[3], 1 << 20)
	print(ask(connection, READ, 0, 4096), ask(connection, READ, 2 << 20, 4096), ask(connection, READ, (1 << 20) - 4096, 8192))
elif what == 'crowd':
	connections, lengths = [Connection(path) for _ in range(3)], {number: 65536 for number in range(24)}
	for number in lengths:
		connections[number % 3].send(number, READ, number * 65536, 65536)
	with open(sys.argv[3], 'rb') as f:
		file = f.read(24 * 65536)
	for i in lengths:
		number, error, data = connections[i % 3].receive(lengths)
		assert not error and data == file[number * 65536:][:65536]
elif what == 'hints':
	print(*Connection(path).hints)
