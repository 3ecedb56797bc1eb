// What a browser makes of pages: each is in a frame, as wide as a telephone or a desk; its faults go to the element #faults,
// one a line. The page that includes this has one <iframe title="NAME"> a page and width.
function faults(frame) {
	const found = [], win = frame.contentWindow, doc = frame.contentDocument
	if (!doc || !doc.querySelector('h1'))
		return ['no page']
	for (const svg of doc.querySelectorAll('svg.picture')) {
		const box = svg.getBBox(), seen = svg.getBoundingClientRect()
		if (!(box.width > 100 && box.height > 100 && seen.width > 100 && seen.height > 100))
			found.push('an empty picture: ' + svg.getAttribute('aria-label'))
		if (!svg.querySelectorAll('use, path').length || svg.querySelectorAll('text').length < 5)
			found.push('a picture without axes: ' + svg.getAttribute('aria-label'))
	}
	for (const use of doc.querySelectorAll('use'))
		if (!doc.querySelector(use.getAttribute('xlink:href')))
			found.push('a sign that is not there: ' + use.getAttribute('xlink:href'))
	for (const image of doc.images)
		if (!image.naturalWidth)
			found.push('a picture that does not load: ' + image.getAttribute('src'))
	for (const link of doc.querySelectorAll('a')) {
		const to = link.getAttribute('href')
		if (!to || to[0] != '#' || !doc.getElementById(to.slice(1)))
			found.push('a link to nowhere: ' + to)
	}
	const ids = new Set()
	for (const element of doc.querySelectorAll('[id]'))
		if (ids.size == ids.add(element.id).size)
			found.push('an id twice: ' + element.id)
	for (const entry of win.performance.getEntriesByType('resource'))
		found.push('a request: ' + entry.name)
	for (const element of doc.querySelectorAll('[src], link[href], [action], object, script'))
		if (!/^data:/.test(element.getAttribute('src') || element.getAttribute('href')))
			found.push('what may be loaded: ' + element.outerHTML.slice(0, 80))
	for (const row of doc.querySelectorAll('.uses li'))
		if (row.scrollWidth > row.clientWidth)
			found.push('a row that is cut: ' + row.textContent)
	const root = doc.documentElement
	if (root.scrollWidth > root.clientWidth)
		found.push('wider than the window: ' + root.scrollWidth + ' of ' + root.clientWidth)
	const light = colour => { // relative luminance, WCAG 2
		const [r, g, b] = colour.match(/[\d.]+/g).map(x => x / 255).map(x => x <= 0.04 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
		return 0.2126 * r + 0.7152 * g + 0.0722 * b
	}
	const back = win.getComputedStyle(doc.body).backgroundColor
	const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05)
	for (const element of doc.querySelectorAll('p, th, td, li, svg.picture text')) {
		const style = win.getComputedStyle(element), own = style.backgroundColor
		const on = /rgba\(0, 0, 0, 0\)/.test(own) ? back : own, ink = element.closest('svg') ? style.fill : style.color
		if (contrast(ink, on) < 4.5) {
			found.push('hard to read: ' + element.textContent.slice(0, 30) + ' ' + ink + ' on ' + on)
			break
		}
	}
	if ((light(back) < 0.2) != win.matchMedia('(prefers-color-scheme: dark)').matches)
		found.push('not in the scheme asked for: ' + back)
	return found
}
window.addEventListener('load', () => {
	const out = document.getElementById('faults')
	for (const frame of document.querySelectorAll('iframe')) {
		let found
		try { found = faults(frame) } catch (e) { found = ['' + e] }
		out.textContent += frame.title + ': ' + (found.length ? found.join('; ') : 'none') + ' ('
			+ (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light') + ')\n'
	}
})
