//! A plot as SVG, written by hand: small panels, both axes logarithmic.

use std::fmt::Write;

pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

pub struct Panel {
    pub title: String,
    pub unit: &'static str,
    pub series: Vec<Series>,
}

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
/// Room for axes and words around a panel's field.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 40.0;
const COLOURS: [&str; 3] = ["#b7410e", "#326ce5", "#555555"];
/// What is below can't be told from nothing.
const FLOOR: f64 = 0.01;

pub fn draw(panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(2);
    let (width, height) = (WIDTH * 2.0, HEIGHT * rows as f64 + 30.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        let (x, y) = ((index % 2) as f64 * WIDTH, (index / 2) as f64 * HEIGHT);
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        panel.draw(&mut svg);
        svg.push_str("</g>\n");
    }
    let names = panels.first().map(|panel| &panel.series[..]).unwrap_or_default();
    for (index, series) in names.iter().enumerate() {
        let x = LEFT + index as f64 * 120.0;
        let y = height - 12.0;
        let colour = COLOURS[index % COLOURS.len()];
        let _ = writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"{}\" r=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"{y}\">{}</text>",
            y - 4.0,
            x + 10.0,
            series.name
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// A logarithmic axis from one whole power of ten to another.
struct Axis {
    low: f64,
    high: f64,
    begin: f64,
    end: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, begin: f64, end: f64) -> Axis {
        let log = |value: f64| value.max(FLOOR).log10();
        let low = values.clone().map(log).fold(f64::INFINITY, f64::min).floor();
        let high = values.map(log).fold(f64::NEG_INFINITY, f64::max).ceil();
        let (low, high) = if low.is_finite() && high.is_finite() { (low, high) } else { (0.0, 1.0) };
        Axis { low, high: high.max(low + 1.0), begin, end }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(FLOOR).log10() - self.low) / (self.high - self.low);
        self.begin + share * (self.end - self.begin)
    }

    fn powers(&self) -> impl Iterator<Item = f64> + use<> {
        (self.low as i32..=self.high as i32).map(|power| 10f64.powi(power))
    }
}

impl Panel {
    fn draw(&self, svg: &mut String) {
        let points = || self.series.iter().flat_map(|series| series.points.iter().copied());
        let x = Axis::over(points().map(|(x, _)| x).collect::<Vec<_>>().into_iter(), LEFT, WIDTH - RIGHT);
        let y = Axis::over(points().map(|(_, y)| y).collect::<Vec<_>>().into_iter(), HEIGHT - BOTTOM, TOP);
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"20\" font-weight=\"bold\">{} ({})</text>",
            self.title, self.unit
        );
        for power in x.powers() {
            let at = x.at(power);
            let (bottom, below) = (HEIGHT - BOTTOM, HEIGHT - BOTTOM + 16.0);
            let _ = writeln!(
                svg,
                "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
                 <text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{power}</text>"
            );
        }
        for power in y.powers() {
            let at = y.at(power);
            let (right, left) = (WIDTH - RIGHT, LEFT - 6.0);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{left}\" y=\"{:.1}\" text-anchor=\"end\">{power}</text>",
                at + 4.0
            );
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        let _ =
            writeln!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">pods</text>", HEIGHT - 8.0);
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let place = |(px, py): &(f64, f64)| format!("{:.1},{:.1}", x.at(*px), y.at(*py));
            let line: Vec<String> = series.points.iter().map(place).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                line.join(" ")
            );
            for (px, py) in &series.points {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{px} pods: {py:.2} {}</title></circle>",
                    x.at(*px),
                    y.at(*py),
                    self.unit
                );
            }
        }
    }
}
