"""Colors of all figures, in Matplotlib and in interactive pages."""

#: Okabe and Ito's palette (Color Universal Design, 2008) without yellow, which is too pale on
#: white. Two dark colors of Tol's muted scheme (2021) are inserted before the black.
COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#882255",
    "#999933",
    "#000000",
)
#: Color of marks without a value, or without a separate color.
GRAY = "#888888"
