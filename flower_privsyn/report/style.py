"""The style sheet of the pages: light, dark, narrow and on paper.

Colours of methods are those of Okabe and Ito (2008), "Color Universal Design", which stay apart for
people with any common colour blindness. They never carry a meaning alone: every method has its own
mark and its name beside it.
"""

from __future__ import annotations

#: Okabe-Ito without yellow, which cannot be seen on white; black is the ink of the page.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")

_COLOURS = "".join(f"--c{number}:{colour};" for number, colour in enumerate(PALETTE))

_CLASSES = "".join(f".c{number}{{--c:var(--c{number})}}" for number in range(len(PALETTE)))

STYLE = f"""
:root{{color-scheme:light dark;--paper:#fff;--panel:#f6f6f3;--ink:#1b1d21;--muted:#565b63;
--rule:#d9d9d4;--grid:#e6e6e1;--warn:#8a3b00;--warn-paper:#fff3e6;--link:#00588a;
{_COLOURS}--c6:var(--ink);--c7:var(--muted)}}
@media (prefers-color-scheme:dark){{:root{{--paper:#15171b;--panel:#1d2026;--ink:#e9e9e6;
--muted:#a9aeb7;--rule:#3a3f48;--grid:#2a2e35;--warn:#ffb877;--warn-paper:#33230f;--link:#7cc4ee;
--c0:#3d9fdb}}}}
{_CLASSES}.c6{{--c:var(--c6)}}.c7{{--c:var(--c7)}}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%;text-size-adjust:100%}}
body{{margin:0;background:var(--paper);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}}
main,footer{{max-width:70rem;margin:0 auto;padding:0 1.25rem}}
main{{padding-top:2rem}}
footer{{color:var(--muted);font-size:.85rem;padding-top:2rem;padding-bottom:3rem}}
h1{{font-size:1.9rem;line-height:1.2;margin:0 0 .35rem;letter-spacing:-.01em;
overflow-wrap:anywhere}}
h2{{font-size:1.3rem;line-height:1.25;margin:0 0 .5rem}}
h3{{font-size:1.05rem;line-height:1.3;margin:0 0 .4rem}}
section{{margin-top:3rem;padding-top:1.5rem;border-top:1px solid var(--rule)}}
p{{margin:0 0 .7rem;max-width:44rem}}
.lead,.subtitle{{color:var(--muted)}}
.subtitle{{margin-bottom:1.2rem;max-width:none}}
a{{color:var(--link)}}
code{{font:.88em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}}
.banner{{border-left:.35rem solid var(--warn);background:var(--warn-paper);padding:.8rem 1rem;
margin:0 0 1.4rem;border-radius:0 .3rem .3rem 0}}
.banner strong{{color:var(--warn)}}
.banner p{{margin:.2rem 0 0}}
.error{{border-left-color:#D55E00}}
.stamp{{color:var(--warn);font-size:.8rem;margin:.2rem 0 .6rem}}
.status{{display:inline-block;border:1px solid currentColor;border-radius:1rem;padding:0 .6rem;
font-size:.85rem}}
.facts{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(10.5rem,44%),1fr));
gap:.9rem 1.5rem;
margin:0 0 1.2rem}}
.facts div{{min-width:0}}
dt{{color:var(--muted);font-size:.82rem}}
dd{{margin:0;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}}
.numbers{{display:flex;flex-wrap:wrap;gap:1rem 2.5rem;margin:0 0 1.4rem}}
.numbers div{{min-width:7rem}}
.numbers dt{{max-width:15rem}}
.numbers dd{{font-size:1.7rem;line-height:1.2}}
figure{{margin:1.6rem 0 2.2rem}}
figcaption{{margin-top:.8rem;font-size:.9rem;color:var(--muted)}}
svg{{display:block;width:100%;height:auto;overflow:visible}}
svg text{{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
fill:var(--ink);font-variant-numeric:tabular-nums}}
svg .quiet{{fill:var(--muted)}}
svg .halo{{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}}
svg .grid{{stroke:var(--grid);stroke-width:1}}
svg .axis{{stroke:var(--muted);stroke-width:1}}
svg .reference{{stroke:var(--muted);stroke-width:1.5;fill:none}}
svg .leader{{stroke:var(--muted);stroke-width:.8;fill:none}}
svg .line{{stroke:var(--c);stroke-width:2;fill:none;stroke-linejoin:round}}
svg .error{{stroke:var(--c);stroke-width:1.5;fill:none}}
svg .mark{{fill:var(--c);stroke:var(--paper);stroke-width:1.2;paint-order:stroke}}
svg .stroke{{fill:none;stroke:var(--c);stroke-width:2.4;stroke-linecap:round}}
svg .hollow{{fill:var(--paper);stroke:var(--c);stroke-width:1.8}}
svg .dots{{fill:none;stroke:var(--c);stroke-linecap:round}}
.narrow{{max-width:34rem}}
.wide{{display:none}}
.panels{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(18rem,100%),1fr));
gap:1.2rem 1.6rem}}
.panels>div{{min-width:0;max-width:27rem}}
.legend{{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;margin:.3rem 0 .6rem;
padding:0;color:var(--ink)}}
.legend li{{display:flex;align-items:center;gap:.4rem}}
.legend svg{{width:1.1rem;height:1.1rem;flex:none}}
.scroll{{container-type:inline-size;overflow-x:auto;margin:.8rem 0 1.4rem;max-width:100%}}
.scroll:focus-visible{{outline:2px solid var(--link);outline-offset:2px}}
table{{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums;
min-width:min(100%,30rem)}}
caption{{text-align:left;font-weight:600;padding:0 0 .4rem;max-width:min(44rem,100cqw);
position:sticky;left:0}}
caption small{{display:block;font-weight:400;color:var(--muted)}}
th,td{{padding:.3rem .7rem;text-align:right;vertical-align:top;border-bottom:1px solid var(--rule)}}
thead th{{vertical-align:bottom;color:var(--muted);font-weight:600;line-height:1.25;
border-bottom-color:var(--muted)}}
tbody th{{font-weight:500}}
th:first-child,td:first-child{{padding-left:0;position:sticky;left:0;background:var(--paper)}}
th.words,td.words{{text-align:left}}
td:not(.words){{white-space:nowrap}}
tbody th.words{{min-width:7rem}}
td.words{{min-width:8rem;overflow-wrap:anywhere}}
details{{margin:.4rem 0}}
summary{{cursor:pointer;color:var(--link);font-size:.9rem;padding:.25rem 0}}
.samples{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(19rem,100%),1fr));
gap:1.2rem;margin:0 0 1.4rem}}
.samples article{{background:var(--panel);border-radius:.4rem;padding:.9rem 1rem;min-width:0}}
.samples h3 svg{{display:inline-block;width:1.1rem;height:1.1rem;vertical-align:-.15rem;
margin-right:.4rem}}
.samples h3 small{{display:block;font-weight:400;color:var(--muted)}}
blockquote{{margin:.6rem 0 0;padding:0;font-size:.92rem;line-height:1.5;overflow-wrap:anywhere;
unicode-bidi:isolate;white-space:pre-wrap}}
blockquote+blockquote,.samples details{{border-top:1px solid var(--rule);padding-top:.6rem}}
.pair>div+div{{margin-top:1.8rem}}
@media screen and (min-width:60rem){{
.narrow{{display:none}}.wide{{display:block}}
.split{{display:grid;grid-template-columns:minmax(0,44rem) minmax(14rem,1fr);gap:0 2rem}}
.split figcaption{{margin-top:2rem}}
.split details{{grid-column:1/-1}}
.pair{{display:grid;grid-template-columns:repeat(auto-fit,minmax(28rem,1fr));gap:1.5rem 2rem}}
.pair>div+div{{margin-top:0}}
main,footer{{padding-left:2rem;padding-right:2rem}}
}}
@media print{{
:root{{--paper:#fff;--panel:#fff;--ink:#000;--muted:#444;--rule:#bbb;--grid:#ddd;--warn:#000;
--warn-paper:#fff;--c0:#0072B2}}
body{{font-size:10pt}}
main,footer{{max-width:none;padding:0}}
.narrow{{max-width:25rem}}
section{{margin-top:1.5rem}}
figure,article,tr,.banner{{break-inside:avoid}}
h2,h3,caption{{break-after:avoid}}
.scroll{{overflow:visible}}
details:not([open]){{display:none}}
.samples article{{border:1px solid var(--rule)}}
}}
"""
