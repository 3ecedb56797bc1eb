# What the pages of bench/report share: text and pictures of gnuplot as HTML.
function esc(s)
{
	gsub(/&/, "\\&amp;", s)
	gsub(/</, "\\&lt;", s)
	gsub(/>/, "\\&gt;", s)
	gsub(/"/, "\\&quot;", s)
	gsub(/'/, "\\&#39;", s)
	gsub(/[\001-\010\013\014\016-\037\177]/, "?", s)
	return s
}
function read_all(file,	line, text)
{
	while ((getline line <file) > 0)
		text = text line "\n"
	close(file)
	return text
}
# What is wider than the window scrolls by itself.
function scroll(attributes, html)
{
	return "<div class='scroll' role='region' tabindex='0' " attributes ">\n" html "</div>\n"
}
# What gnuplot takes for one string.
function plain(s) { gsub(/["'\\\t`@$]/, "", s); return "\"" s "\"" }
# gnuplot's picture as a part of the page: its names unique there, its colours the page's.
function inlined(t, file, description,	svg, line, k)
{
	while ((getline line <file) > 0) {
		if (line ~ /^<[?!]/ || line ~ /^<(title|desc)>/)
			continue
		gsub(/xlink:href='#/, "&" t "-", line)
		gsub(/id='/, "&" t "-", line)
		gsub(/id="[gG]nuplot/, "&-" t, line)
		gsub(/rgb\( *1, *1, *1\)/, "var(--ink)", line)
		gsub(/rgb\( *2, *2, *2\)/, "var(--rule)", line)
		for (k = 1; k <= 8; k++)
			gsub("rgb\\( *" k ", *0, *0\\)", "var(--series-" k ")", line)
		gsub(/ font-family="[^"]*"/, "", line)
		if (line ~ /^<svg/)
			line = "<svg class='picture' role='img' aria-label='" description "' "
		svg = svg line "\n"
	}
	close(file)
	return svg
}
