"""hugepin plot: draws traces of HUGEPIN_TRACE by gnuplot(1), as registered memory over time with a mark at each miss.

Files of the ranks of an MPI program are one run. All runs begin at the left edge, so that runs of a program under several policies
can be compared. Up to four lines have a panel each. Of more, those of one run and policy are one panel: their mean, in a band from
the least to the most of them."""
import array, collections, getopt, heapq, io, itertools, math, operator, os, re, subprocess, sys

NUMBER = '[0-9]{1,20}'
FIELDS = ( # of a line: name, pattern, and what is accepted
	('t_ns', NUMBER, 'a number of nanoseconds'),
	('event', 'pin|unpin|register|deregister|miss', 'pin, unpin, register, deregister or miss'),
	('domain', NUMBER, 'a number'),
	('policy', '[a-z0-9]{1,15}', 'a word, as arena, lru or cf11'),
	('addr', '0x[0-9a-f]{1,16}', 'a hexadecimal number, as 0x7f00'),
	('len', NUMBER, 'a number of bytes'),
	('pinned_bytes', NUMBER, 'a number of bytes'),
	('regions', NUMBER, 'a number'))
HEADER = ','.join(name for name, _, _ in FIELDS)
LINE = re.compile(','.join('(%s)' % pattern for _, pattern, _ in FIELDS) + '\n?')
RANK = re.compile('# rank=([0-9]{1,9}) pid=([0-9]{1,9}) host=(.*)\n?')
USAGE = 'usage: hugepin plot [-o FILE] [-t TITLE] TRACE...'
LINES_MAX, PANELS_MAX = 4, 96
COLUMNS = 2400 # of a line: twice the pixels of the picture
BINS = 300 # columns of bands and misses
# The colours of Okabe and Ito, which most colour-blind people can tell apart.
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9'

def fail(message):
	sys.exit('hugepin plot: ' + tame(message))

def usage(message):
	sys.stderr.write('hugepin plot: %s\n%s\n' % (tame(message), USAGE))
	sys.exit(2)

def tame(text):
	"""Foreign text must not control a terminal, and gnuplot wants UTF-8."""
	return ''.join(c if c.isprintable() else '?' for c in text)

def quote(text):
	return "'" + tame(text).replace("'", "''") + "'" # between single quotes gnuplot knows no other special character

class Series:
	"""The registered memory of a domain under a policy. Times are from the first event of the file, in nanoseconds."""
	def __init__(self, trace, domain, policy):
		self.trace, self.domain, self.policy = trace, domain, policy
		self.t, self.bytes, self.misses = array.array('d'), array.array('d'), array.array('d')
		self.shift = 0 # from the left edge of the picture to the first event of the file

	def values(self):
		return ((t + self.shift, b) for t, b in zip(self.t, self.bytes))

	def changes(self):
		before = 0
		for t, b in self.values():
			yield t, b - before
			before = b

class Trace:
	"""A file."""
	def __init__(self, path):
		self.path, self.name, self.rank, self.host, self.series = path, os.path.basename(path), None, self, {}
		self.begin = self.end = None
		with open(path, encoding='utf-8', errors='replace', newline='\n') as lines:
			self.check_header(lines.readline().rstrip('\n'))
			for number, line in enumerate(lines, 2):
				if line[0] == '#':
					self.read_comment(line)
				else:
					self.read_event(number, line)

	def check_header(self, line):
		if line.startswith('seq(call number),'):
			fail(self.path + ':1: this file has the calls of an MPI program, of HUGEPIN_X_MPI_TRACE; '
				'plot draws the registered memory, which HUGEPIN_TRACE=run.csv records')
		if line != HEADER:
			fail('%s:1: not a trace of HUGEPIN_TRACE, whose first line is %s' % (self.path, HEADER))

	def read_comment(self, line):
		"""Of a rank it is "# rank=3 pid=1234 host=node7". Others are for people. The run's name has stars for rank and process."""
		found = RANK.fullmatch(line)
		if found and self.rank is None:
			self.rank, self.host = found[1], found[3]
			for number in found[2], found[1]:
				self.name = re.sub('(.*)(?<![0-9])%s(?![0-9])' % number, r'\1*', self.name, count=1)

	def read_event(self, number, line):
		found = LINE.fullmatch(line)
		if not found:
			texts = line.rstrip('\n').split(',')
			for (name, pattern, accepted), text in itertools.zip_longest(FIELDS, texts[:len(FIELDS)], fillvalue=''):
				if not re.fullmatch(pattern, text):
					fail("%s:%d: %s is '%s'; it has to be %s" % (self.path, number, name, text[:40], accepted))
			fail('%s:%d: %d fields; a line has %d: %s' % (self.path, number, len(texts), len(FIELDS), HEADER))
		t, event, domain, policy, now = int(found[1]), found[2], found[3], found[4], int(found[7])
		if self.begin is None:
			self.begin = self.end = t
		if t < self.end:
			fail('%s:%d: the time is before that of the line above; if several processes wrote this file, HUGEPIN_TRACE needs '
				'a %%p in the path' % (self.path, number))
		self.end = t
		series = self.series.get((domain, policy))
		if not series:
			series = self.series[domain, policy] = Series(self, domain, policy)
		if not series.bytes or series.bytes[-1] != now:
			series.t.append(t - self.begin)
			series.bytes.append(now)
		if event == 'miss':
			series.misses.append(t - self.begin)

class Run:
	"""One process, or all ranks of an MPI program."""
	def __init__(self):
		self.traces = []

	def finish(self):
		"""Ranks on one host have one clock, and keep the distances of their first events."""
		edge = {}
		for trace in self.traces:
			edge[trace.host] = min(trace.begin, edge.get(trace.host, trace.begin))
		for trace in self.traces:
			for series in trace.series.values():
				series.shift = trace.begin - edge[trace.host]
		self.length = max(trace.end - edge[trace.host] for trace in self.traces)
		first = self.traces[0]
		self.path = os.path.join(os.path.dirname(first.path), first.name) if len(self.traces) > 1 else first.path
		self.domains = max(len({s.domain for s in trace.series.values()}) for trace in self.traces)

	def output(self):
		"""A name for the picture: without the star of the rank, as the library puts it, and without the ending."""
		folder, name = os.path.split(self.path)
		if len(self.traces) > 1:
			name = re.sub(r'^\*[-._]?|(\.r|[-._])?\*', '', name)
		return os.path.join(folder, os.path.splitext(name)[0] or 'pinned') + '.png'

def find_runs(traces):
	"""Traces of one name are one run, unless they are of the same rank, as those of a second run are."""
	runs, seen = collections.defaultdict(Run), collections.Counter()
	for trace in traces:
		key = trace if trace.rank is None else os.path.join(os.path.dirname(trace.path), trace.name)
		seen[key, trace.rank] += 1
		runs[key, seen[key, trace.rank]].traces.append(trace)
	for run in runs.values():
		run.finish()
	return list(runs.values())

class Curve:
	"""A line of the picture: one series, or the sum of several. Times are from the left edge."""
	def __init__(self, run, policy):
		self.run, self.policy, self.members = run, policy, []
		self.area = self.peak = 0

	def sums(self, end):
		"""The sum at each change and at the end. Of changes at one time the last counts."""
		begin = last = None
		total = 0
		for t, same in itertools.groupby(heapq.merge(*(s.changes() for s in self.members)), operator.itemgetter(0)):
			begin = t if begin is None else begin
			self.area += 0 if last is None else total * (t - last)
			total += sum(change for _, change in same)
			self.peak = max(self.peak, total)
			last = t
			yield t, total
		self.area += total * (end - last)
		self.mean = self.area / (end - begin) if end > begin else total
		if end > last:
			yield end, total

	def finish(self, length):
		"""Of a column of the picture the first, lowest, highest and last value draw the same line as all of them (Jugel et al., M4:
		A Visualization-Oriented Time Series Data Aggregation, VLDB 2014)."""
		first = self.members[0]
		end = self.run.length if len(self.members) > 1 else first.trace.end - first.trace.begin + first.shift
		self.points = []
		for _, column in itertools.groupby(self.sums(end), lambda point: int(point[0] * COLUMNS / (length + 1))):
			column = list(column)
			by_bytes = operator.itemgetter(1)
			self.points += sorted({column[0], min(column, key=by_bytes), max(column, key=by_bytes), column[-1]})
		self.misses = collections.Counter(int((t + s.shift) * BINS / (length + 1)) for s in self.members for t in s.misses)
		self.most = max(max(s.bytes) for s in self.members)
		self.band = self.find_band(length, int(end * BINS / (length + 1))) if len(self.members) > 1 else []

	def find_band(self, length, last):
		"""Least and most of the members in each column. Before its first event a member has nothing registered; after its last one it
		keeps what it has."""
		low, high = [math.inf] * (last + 1), [0] * (last + 1)
		for member in self.members:
			at = before = 0
			for t, b in itertools.chain(member.values(), [(math.inf, 0)]):
				column = last if t == math.inf else int(t * BINS / (length + 1))
				for i in range(at, column + 1):
					low[i], high[i] = min(low[i], before), max(high[i], before)
				at, before = column, b
		return list(zip(low, high))

	def label(self, folder):
		n, misses = len(self.members), sum(self.misses.values())
		domain = ', domain ' + self.members[0].domain if n == 1 and self.run.domains > 1 else ''
		path = os.path.relpath(self.run.path if n > 1 else self.members[0].trace.path, folder)
		path = path if len(path) <= 40 else '...' + path[-37:] # the end tells files apart
		together = ' together' if n > 1 else ''
		return '%s%s, %s: %smean %s, peak %s%s, %d miss%s' % (self.policy, domain, path, '%d %ss: ' % (n, self.member()) if n > 1 else '',
			amount(self.mean), amount(self.peak), together, misses, '' if misses == 1 else 'es')

	def member(self):
		return 'domain' if self.run.domains > 1 else 'rank'

def find_curves(runs):
	series = [(run, s) for run in runs for trace in run.traces for s in trace.series.values()]
	curves = {}
	for run, s in series:
		key = s if len(series) <= LINES_MAX else (run, s.policy)
		curves.setdefault(key, Curve(run, s.policy)).members.append(s)
	return list(curves.values())

def bytes_unit(most):
	return (1 << 10, 'KiB') if most < 1 << 20 else (1 << 20, 'MiB') if most < 1 << 30 else (1 << 30, 'GiB')

def amount(n):
	unit, name = bytes_unit(n)
	return '%.3g %s' % (n / unit, name)

def write_script(to, curves, length, title, svg):
	"""Panels with the same axes, one below the other, or in two columns. Marks at misses stand on the time axis: the higher, the more
	misses."""
	columns = 1 if len(curves) <= 4 else 2
	rows = -(-len(curves) // columns)
	height = 60 + rows * (480 if rows == 1 else 250)
	unit, unit_name = bytes_unit(max(c.most for c in curves))
	ns, ns_name = (1e3, 'µs') if length < 2e6 else (1e6, 'ms') if length < 2e9 else (1e9, 's')
	most_misses = max(max(c.misses.values(), default=0) for c in curves)
	folder = os.path.commonpath([os.path.dirname(os.path.abspath(c.run.path)) for c in curves])
	bands = [c for c in curves if c.band]
	policies = list(dict.fromkeys(c.policy for c in curves))

	def block(name, rows):
		to.write('$%s << END\n' % name)
		for row in rows:
			to.write(' '.join('%.9g' % value for value in row) + '\n')
		to.write('END\n')

	to.write('set terminal %s noenhanced size 1200,%d font %s background rgb "white"\nset encoding utf8\n' % (
		('svg', height, '"sans-serif,12"') if svg else ('pngcairo', height, '"sans,10"')))
	to.write('set multiplot layout %d,%d%s\n' % (rows, columns, ' title %s font ",14"' % quote(title) if title else ''))
	to.write('set border 3\nset tics out nomirror\nset grid\nunset key\n')
	to.write('set xrange [0:%.9g]\nset xlabel "time (%s)"\n' % (length / ns or 1, ns_name))
	to.write('set yrange [0:%.9g]\nset y2range [0:16]\n' % (max(c.most for c in curves) * 1.05 / unit or 1))
	to.write('set ylabel "registered memory%s (%s)"\n' % (' of a ' + bands[0].member() if bands else '', unit_name))
	for i, c in enumerate(curves):
		colour = COLOURS[policies.index(c.policy) % len(COLOURS)]
		block('values%d' % i, ((t / ns, b / len(c.members) / unit) for t, b in c.points))
		plots = ['$values%d using 1:2 with steps linewidth 2 linecolor rgb "%s"' % (i, colour)]
		if c.band:
			end = c.run.length
			block('band%d' % i, ((min((at + edge) * length / BINS, end) / ns, low / unit, high / unit)
				for at, (low, high) in enumerate(c.band) for edge in (0, 1)))
			plots.insert(0, '$band%d using 1:2:3 with filledcurves fillcolor rgb "%s" fillstyle transparent solid 0.25 noborder' %
				(i, colour))
		if c.misses:
			block('misses%d' % i, (((at + .5) * length / BINS / ns, .3 + .7 * n / most_misses) for at, n in sorted(c.misses.items())))
			plots.append('$misses%d using 1:2 axes x1y2 with impulses linewidth 1.5 linecolor rgb "black"' % i)
		to.write('set title %s textcolor rgb "%s"\nplot %s\n' % (quote(c.label(folder)), colour, ', '.join(plots)))
	to.write('unset multiplot\n')

def draw(curves, length, title, svg):
	"""The picture. gnuplot writes it to a pipe, since gnuplot reports no error if a disk is full."""
	environment = {**os.environ, 'LC_ALL': 'C.UTF-8'} # the encoding of the script: in plain C gnuplot warns of other characters
	try:
		gnuplot = subprocess.Popen(['gnuplot', '-d', '-'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
	except FileNotFoundError:
		fail('gnuplot is not in PATH; on Debian: apt-get install gnuplot-nox')
	script = io.StringIO()
	write_script(script, curves, length, title, svg)
	picture, _ = gnuplot.communicate(script.getvalue().encode())
	if gnuplot.returncode:
		fail('gnuplot failed')
	return picture

def count(n, one, more):
	return '%d %s' % (n, one if n == 1 else more)

def main():
	try:
		options, paths = getopt.gnu_getopt(sys.argv[1:], 'o:t:', ['help'])
	except getopt.GetoptError as e:
		usage(e.msg)
	options = dict(options)
	if '--help' in options:
		print(USAGE)
		return
	output = options.get('-o')
	if output and not output.lower().endswith(('.png', '.svg')):
		usage(output + ': the name of the picture ends in .png or .svg')
	if not paths:
		usage('which trace?')

	traces = [trace for trace in map(Trace, paths) if trace.series]
	if not traces:
		fail('there are no events in %s' % ', '.join(paths))
	runs = find_runs(traces)
	curves = find_curves(runs)
	if len(curves) > PANELS_MAX:
		fail('%d runs and policies are too many for one picture, which takes %d' % (len(curves), PANELS_MAX))
	length = max(run.length for run in runs)
	for curve in curves:
		curve.finish(length)
	output = output or (runs[0].output() if len(runs) == 1 and all(map(os.path.isfile, paths)) else 'pinned.png')
	if any(os.path.exists(output) and os.path.samefile(output, path) for path in paths if os.path.exists(path)):
		fail(output + ': this is a trace; the picture needs another name')
	picture = draw(curves, length, options.get('-t'), output.lower().endswith('.svg'))
	with open(output, 'wb') as to:
		to.write(picture)

	ranks = max(len(run.traces) if run.traces[0].rank is not None else 1 for run in runs)
	what = [count(len(runs), 'run', 'runs')] * (len(runs) > 1) + [count(ranks, 'rank', 'ranks')] if ranks > 1 else \
		[count(len(paths), 'trace', 'traces')]
	what += [count(len({c.policy for c in curves}), 'policy', 'policies'), '%.3g s' % (length / 1e9)]
	os.write(1, ('%s: %s\n' % (tame(output), ', '.join(what))).encode()) # print() would complain twice of a full disk

if __name__ == '__main__':
	try:
		main()
	except OSError as e:
		fail('%s: %s' % (e.filename or 'standard output', e.strerror))
	except KeyboardInterrupt:
		sys.exit(130)
