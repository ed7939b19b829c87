//! Writes the library's metrics to a file, in the text format of node exporter's textfile collector.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock::metrics::METRIC_BUCKETS;
use metrics::{
    Counter, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// How many files of earlier runs may lie beside the file.
const MOST_LEFTOVERS: u32 = 1000;

/// The metrics of this run, and where they go at its end.
#[derive(Debug)]
pub(crate) struct MetricsFile {
    path: PathBuf,
    recorded: Arc<Recorded>,
}

impl MetricsFile {
    /// Begins to record. There is one for each process.
    pub(crate) fn begin(path: &Path, lock: &str) -> Self {
        let recorded = Arc::new(Recorded { lock: lock.to_owned(), families: Mutex::default() });
        let _ = metrics::set_global_recorder(Arc::clone(&recorded));
        Self { path: path.to_owned(), recorded }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what was recorded and how the run ended, in one step: a reader never sees a part of it.
    pub(crate) fn write(&self, exit_code: u8) -> io::Result<()> {
        let name = KeyName::from_const_str("distlock_exit_code");
        self.recorded.describe_gauge(name, None, SharedString::const_str("The exit code of the last run"));
        let metadata = Metadata::new("distlock", metrics::Level::INFO, None);
        self.recorded.register_gauge(&Key::from_name("distlock_exit_code"), &metadata).set(exit_code);
        let (mut file, unfinished) = self.unfinished()?;
        let written = file
            .write_all(self.recorded.to_string().as_bytes())
            .and_then(|()| fs::rename(&unfinished, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    /// Creates a file beside the one to write. The collector does not read it, because it does not end with `.prom`. A run that was
    /// killed may have left one, and in containers each has the same process id.
    fn unfinished(&self) -> io::Result<(File, PathBuf)> {
        let mut number = 0_u32;
        loop {
            let mut path = self.path.as_os_str().to_owned();
            path.push(format!(".{}.{number}", process::id()));
            let path = PathBuf::from(path);
            match File::create_new(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < MOST_LEFTOVERS => {
                    number += 1;
                }
                created => return created.map(|file| (file, path)),
            }
        }
    }
}

/// A recorder that keeps the sums of what was recorded.
#[derive(Debug)]
struct Recorded {
    /// A label of every series, so that the files of several locks can lie side by side.
    lock: String,
    families: Mutex<BTreeMap<String, Family>>,
}

/// The series of one name.
#[derive(Debug, Default)]
struct Family {
    help: String,
    series: BTreeMap<String, Series>,
}

#[derive(Debug)]
enum Series {
    Counter(Arc<AtomicU64>),
    Gauge(Arc<AtomicU64>),
    Times(Arc<Times>),
}

/// A histogram.
#[derive(Debug, Default)]
struct Times {
    /// The bits of a float.
    sum: AtomicU64,
    count: AtomicU64,
    /// How many are not above each bound.
    within: [AtomicU64; METRIC_BUCKETS.len()],
}

impl HistogramFn for Times {
    fn record(&self, value: f64) {
        GaugeFn::increment(&self.sum, value);
        for (bound, within) in METRIC_BUCKETS.iter().zip(&self.within) {
            within.fetch_add((value <= *bound).into(), Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Recorded {
    fn families(&self) -> MutexGuard<'_, BTreeMap<String, Family>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, name: &KeyName, help: &SharedString) {
        self.families().entry(name.as_str().to_owned()).or_default().help = help.to_string();
    }

    /// Returns what `find` finds in the series of this key, which is created with `new` if there is none.
    fn series<T>(&self, key: &Key, new: fn() -> Series, find: fn(&Series) -> Option<T>) -> Option<T> {
        let mut labels = format!("lock=\"{}\"", escaped(&self.lock));
        for label in key.labels() {
            let _ = write!(labels, ",{}=\"{}\"", label.key(), escaped(label.value()));
        }
        let mut families = self.families();
        let family = families.entry(key.name().to_owned()).or_default();
        find(family.series.entry(labels).or_insert_with(new))
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let counter = self.series(
            key,
            || Series::Counter(Arc::default()),
            |series| if let Series::Counter(counter) = series { Some(Arc::clone(counter)) } else { None },
        );
        counter.map_or_else(Counter::noop, Counter::from_arc)
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let gauge = self.series(
            key,
            || Series::Gauge(Arc::default()),
            |series| if let Series::Gauge(gauge) = series { Some(Arc::clone(gauge)) } else { None },
        );
        gauge.map_or_else(Gauge::noop, Gauge::from_arc)
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let times = self.series(
            key,
            || Series::Times(Arc::default()),
            |series| if let Series::Times(times) = series { Some(Arc::clone(times)) } else { None },
        );
        times.map_or_else(Histogram::noop, Histogram::from_arc)
    }
}

/// The text format of Prometheus.
impl fmt::Display for Recorded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, Family { help, series }) in &*self.families() {
            let Some(first) = series.values().next() else { continue };
            writeln!(formatter, "# HELP {name} {help}\n# TYPE {name} {}", first.kind())?;
            for (labels, series) in series {
                series.write(name, labels, formatter)?;
            }
        }
        Ok(())
    }
}

impl Series {
    fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Gauge(_) => "gauge",
            Self::Times(_) => "histogram",
        }
    }

    fn write(&self, name: &str, labels: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counter(counter) => {
                writeln!(formatter, "{name}{{{labels}}} {}", counter.load(Ordering::Relaxed))
            }
            Self::Gauge(gauge) => writeln!(formatter, "{name}{{{labels}}} {}", number(gauge)),
            Self::Times(times) => {
                let Times { sum, count, within } = &**times;
                let (count, sum) = (count.load(Ordering::Relaxed), number(sum));
                for (bound, within) in METRIC_BUCKETS.iter().zip(within) {
                    let within = within.load(Ordering::Relaxed);
                    writeln!(formatter, "{name}_bucket{{{labels},le=\"{bound}\"}} {within}")?;
                }
                writeln!(formatter, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")?;
                writeln!(formatter, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}")
            }
        }
    }
}

fn number(bits: &AtomicU64) -> String {
    let value = f64::from_bits(bits.load(Ordering::Relaxed));
    if value == f64::INFINITY { "+Inf".to_owned() } else { value.to_string() }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_that_of_prometheus() {
        let recorded = Recorded { lock: "a \"b\"\\".to_owned(), families: Mutex::default() };
        metrics::with_local_recorder(&recorded, || {
            metrics::describe_counter!("losses_total", "Losses");
            metrics::describe_gauge!("left_seconds", "What is left");
            metrics::describe_histogram!("wait_seconds", "Waits");
            metrics::counter!("losses_total", "reason" => "expired").increment(2);
            metrics::gauge!("left_seconds").set(f64::INFINITY);
            metrics::histogram!("wait_seconds").record(0.25);
            metrics::histogram!("wait_seconds").record(0.5);
        });
        let expected = r#"# HELP left_seconds What is left
# TYPE left_seconds gauge
left_seconds{lock="a \"b\"\\"} +Inf
# HELP losses_total Losses
# TYPE losses_total counter
losses_total{lock="a \"b\"\\",reason="expired"} 2
# HELP wait_seconds Waits
# TYPE wait_seconds histogram
wait_seconds_bucket{lock="a \"b\"\\",le="0.001"} 0
wait_seconds_bucket{lock="a \"b\"\\",le="0.01"} 0
wait_seconds_bucket{lock="a \"b\"\\",le="0.1"} 0
wait_seconds_bucket{lock="a \"b\"\\",le="1"} 2
wait_seconds_bucket{lock="a \"b\"\\",le="10"} 2
wait_seconds_bucket{lock="a \"b\"\\",le="60"} 2
wait_seconds_bucket{lock="a \"b\"\\",le="300"} 2
wait_seconds_bucket{lock="a \"b\"\\",le="1800"} 2
wait_seconds_bucket{lock="a \"b\"\\",le="3600"} 2
wait_seconds_bucket{lock="a \"b\"\\",le="+Inf"} 2
wait_seconds_sum{lock="a \"b\"\\"} 0.75
wait_seconds_count{lock="a \"b\"\\"} 2
"#;
        assert_eq!(recorded.to_string(), expected);
    }
}
