//! The whole test against a small server that counts, answers and refuses as told.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use clap::Parser as _;
use serde_json::{Value, json};

use super::report::Report;
use super::trial::Cell;
use super::*;

/// How the server behaves.
#[derive(Debug, Clone, Copy)]
struct Manner {
    /// Facts further from the end of the text than so many words are forgotten.
    remembers_words: usize,
    /// Of every so many requests, all but the last are refused.
    refuses: usize,
    /// Each word after so many counts double: a tokenizer that is not even.
    uneven_after: usize,
    usage: bool,
    breaks: bool,
    status: u16,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            remembers_words: usize::MAX,
            refuses: 1,
            uneven_after: usize::MAX,
            usage: true,
            breaks: false,
            status: 200,
        }
    }
}

struct Server {
    url: String,
    requests: Arc<Mutex<Vec<Value>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (requests, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let shared = (Arc::clone(&requests), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let counter = AtomicUsize::new(0);
            for stream in listener.incoming() {
                if shared.1.load(Ordering::SeqCst) {
                    return;
                }
                serve(stream.unwrap(), manner, &counter, &shared.0);
            }
        });
        Self { url, requests, stop, thread: Some(thread) }
    }

    fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the accept.
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
        self.thread.take().unwrap().join().unwrap();
    }
}

/// One request, one connection.
fn serve(stream: TcpStream, manner: Manner, counter: &AtomicUsize, requests: &Mutex<Vec<Value>>) {
    let mut reader = BufReader::new(stream);
    let (mut line, mut head, mut length) = (String::new(), String::new(), 0);
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&line);
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let answer = if head.starts_with("GET /v1/models ") {
        plain(200, "", &json!({"data": [{"id": "tiny"}]}).to_string())
    } else if head.starts_with("POST /v1/chat/completions ") {
        let request: Value = serde_json::from_slice(&body).unwrap();
        let number = counter.fetch_add(1, Ordering::SeqCst);
        requests.lock().unwrap().push(request.clone());
        chat(&request, manner, number)
    } else {
        plain(404, "", "nothing here")
    };
    let _ = reader.into_inner().write_all(answer.as_bytes());
}

fn plain(status: u16, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} x\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn chat(request: &Value, manner: Manner, number: usize) -> String {
    if !(number + 1).is_multiple_of(manner.refuses) {
        return plain(429, "retry-after-ms: 3\r\nretry-after: 9\r\n", r#"{"error":{"message":"full"}}"#);
    }
    if manner.status != 200 {
        return plain(manner.status, "", r#"{"error":{"message":"the prompt is too long"}}"#);
    }
    let prompt = request["messages"][0]["content"].as_str().unwrap();
    let words: Vec<&str> = prompt.split(' ').collect();
    let mut events =
        format!("data: {}\n\n", json!({"choices": [{"delta": {"content": recall(&words, manner)}}]}));
    if manner.usage {
        let tokens = 20 + words.len() + words.len().saturating_sub(manner.uneven_after);
        events += &format!("data: {}\n\n", json!({"choices": [], "usage": {"prompt_tokens": tokens}}));
    }
    if !manner.breaks {
        events += "data: [DONE]\n\n";
    }
    plain(200, "content-type: text/event-stream\r\n", &events)
}

fn recall(words: &[&str], manner: Manner) -> String {
    let thing = words.last().unwrap().trim_end_matches('?');
    let from = words.len().saturating_sub(manner.remembers_words);
    let fact = words[from..].windows(3).find(|window| window[0] == thing && window[1] == "is");
    fact.map_or("I do not know.".to_owned(), |window| format!("It is {}", window[2]))
}

fn plan() -> Plan {
    Plan {
        model: "tiny".to_owned(),
        lengths: vec![500, 2000],
        depths: vec![Depth::Start, Depth::Middle, Depth::End],
        trials: 2,
        thinking: Thinking::Off,
        seed: 1,
    }
}

fn ask(manner: Manner, plan: &Plan) -> (Result<Vec<Cell>, NeedleError>, Vec<Value>) {
    let server = Server::start(manner);
    let client = Client::new(&server.url, None, Duration::from_secs(20)).unwrap();
    (trial::run(&client, plan, |_| {}), server.requests())
}

fn report(manner: Manner) -> Report {
    Report::new("http://h/v1", &plan(), 0.9, ask(manner, &plan()).0.unwrap())
}

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// The command line, as typed.
fn command(line: &str) -> Result<ExitCode, String> {
    let words = std::iter::once("needle").chain(line.split_whitespace());
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    run(line.args).map_err(|error| format!("{error:#}"))
}

#[test]
fn a_server_that_remembers_passes_and_every_length_is_met() {
    let (cells, _) = ask(Manner::default(), &plan());
    let cells = cells.unwrap();
    assert_eq!(cells.len(), 6);
    for cell in &cells {
        assert_eq!(cell.right(), 2, "{cell:?}");
        for asked in &cell.asked {
            assert!(lengths::is_met(cell.length, asked.prompt_tokens), "{cell:?}");
        }
    }
}

#[test]
fn a_server_that_forgets_is_found_out_where_it_forgets() {
    let (cells, _) = ask(Manner { remembers_words: 700, ..Manner::default() }, &plan());
    let found: Vec<usize> = cells.unwrap().iter().map(Cell::right).collect();
    assert_eq!(found, [2, 2, 2, 0, 0, 2]);
    let report = report(Manner { remembers_words: 300, ..Manner::default() });
    assert!(!report.passed());
    let table = report.table();
    assert!(
        table.contains("0/2") && table.contains("too few") && table.contains("I do not know."),
        "{table}"
    );
}

#[test]
fn refusals_are_obeyed_and_not_counted() {
    let started = Instant::now();
    let report = report(Manner { refuses: 3, ..Manner::default() });
    assert!(report.passed());
    assert!(started.elapsed() < Duration::from_secs(60), "retry-after-ms goes before retry-after");
}

#[test]
fn a_server_that_refuses_for_ever_is_given_up() {
    let (cells, requests) = ask(Manner { refuses: usize::MAX, ..Manner::default() }, &plan());
    let error = cells.unwrap_err().to_string();
    assert!(error.contains("30 tries") && error.contains("full"), "{error}");
    assert_eq!(requests.len(), 30);
}

#[test]
fn a_tokenizer_that_is_not_even_is_met_all_the_same() {
    let (cells, _) = ask(Manner { uneven_after: 600, ..Manner::default() }, &plan());
    assert!(cells.unwrap().iter().flat_map(|cell| &cell.asked).all(|asked| asked.right));
}

#[test]
fn what_cannot_be_measured_is_said() {
    let no_usage = ask(Manner { usage: false, ..Manner::default() }, &plan()).0.unwrap_err().to_string();
    assert!(no_usage.contains("usage.prompt_tokens"), "{no_usage}");
    let short = Plan { lengths: vec![30], ..plan() };
    let too_short = ask(Manner::default(), &short).0.unwrap_err().to_string();
    assert!(too_short.contains("--lengths: 30"), "{too_short}");
    let long = ask(Manner { status: 400, ..Manner::default() }, &plan());
    assert!(long.0.unwrap_err().to_string().contains("the prompt is too long"));
    assert_eq!(long.1.len(), 1, "a 400 is not asked again");
}

#[test]
fn broken_answers_are_asked_again_a_few_times() {
    let (cells, requests) = ask(Manner { breaks: true, ..Manner::default() }, &plan());
    let error = cells.unwrap_err().to_string();
    assert!(error.contains("before its end marker"), "{error}");
    assert_eq!(requests.len(), 3);
}

#[test]
fn questions_are_greedy_and_the_same_for_the_same_seed() {
    let first = ask(Manner::default(), &plan()).1;
    assert_eq!(first, ask(Manner::default(), &plan()).1);
    assert_ne!(first, ask(Manner::default(), &Plan { seed: 2, ..plan() }).1);
    for request in &first {
        assert_eq!((&request["temperature"], &request["stream"]), (&json!(0), &json!(true)));
        assert_eq!(request["thinking"], json!({"type": "disabled"}));
    }
    let default = ask(Manner::default(), &Plan { thinking: Thinking::Default, ..plan() }).1;
    assert!(default.iter().all(|request| request.get("thinking").is_none()));
}

#[test]
fn the_document_has_what_a_program_needs() {
    let text = serde_json::to_string(&report(Manner::default())).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&value["right"], &value["asked"], &value["passed"]), (&json!(12), &json!(12), &json!(true)));
    assert_eq!(value["cells"][4]["depth"], "middle");
    assert_eq!(value["cells"][4]["promptTokens"].as_array().unwrap().len(), 2);
    assert_eq!(value["cells"][4]["misses"], json!([]));
}

#[test]
fn the_exit_code_says_whether_enough_was_found() {
    let good = Server::start(Manner::default());
    let bad = Server::start(Manner { remembers_words: 50, ..Manner::default() });
    let ask = |server: &Server, more: &str| {
        command(&format!("--url {} --lengths 400 --trials 1 -o json {more}", server.url)).unwrap()
    };
    assert_eq!(ask(&good, ""), ExitCode::SUCCESS);
    assert_eq!(ask(&bad, ""), ExitCode::from(1));
    assert_eq!(ask(&bad, "--min 0 --depths start"), ExitCode::SUCCESS);
}

#[test]
fn bad_input_is_explained() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cases = [
        ("--url nonsense", "--url"),
        ("--url http://h --api-key-env FATHOM_NO_SUCH_KEY", "FATHOM_NO_SUCH_KEY"),
        ("--url http://h --lengths 0", "--lengths"),
        ("--url http://h --lengths a", "--lengths"),
        ("--url http://h --depths top", "--depths"),
        ("--url http://h --trials 0", "--trials"),
        ("--url http://h --min 2", "between 0 and 1"),
        ("--url http://h --min NaN", "between 0 and 1"),
        (&format!("--url http://{closed}"), "cannot be asked"),
    ];
    for (line, expected) in cases {
        let error = command(line).unwrap_err();
        assert!(error.contains(expected), "{line}: {error}");
    }
}
