//! The answer over HTTP: one thread, one request a connection, `GET /metrics` and nothing else.
//!
//! * H1: whoever connects is nobody in particular: the head of a request has at most 8 KiB, its first line
//!   1 KiB, and 2 s to arrive, however it is dripped in. The same time is for taking the answer.
//! * H2: nothing that a client sends reaches the region or the file system.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::findings::Verdict;

/// Bytes of a request's head.
const HEAD_BYTES: usize = 8 << 10;
/// Bytes of its first line.
const LINE_BYTES: usize = 1 << 10;
/// Time for a request to arrive, and for its answer to leave.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers until `times` requests were served, or for ever.
///
/// # Errors
/// The address cannot be listened on.
pub fn run(address: SocketAddr, scrape: impl FnMut() -> String, times: Option<u64>) -> io::Result<Verdict> {
    let listener = TcpListener::bind(address)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))?;
    // Port 0 lets the kernel choose; whoever asked has to hear which.
    eprintln!("maru-inspect: listening on http://{}/metrics", listener.local_addr()?);
    serve(&listener, scrape, times);
    Ok(Verdict::Sound)
}

fn serve(listener: &TcpListener, mut scrape: impl FnMut() -> String, times: Option<u64>) {
    let mut served = 0;
    while times.is_none_or(|times| served < times) {
        match listener.accept() {
            // A client that goes away has had what it wanted.
            Ok((stream, _)) => drop(answer(&stream, &mut scrape)),
            // Out of descriptors, most likely: not a reason to end, nor to spin.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
        served += 1;
    }
}

fn answer(stream: &TcpStream, scrape: &mut impl FnMut() -> String) -> io::Result<()> {
    let (status, body) = match request_line(stream)? {
        Err(status) => (status, format!("{status}\n")),
        Ok((method, path)) => match (method.as_str(), path.as_str()) {
            ("GET", "/metrics") => ("200 OK", scrape()),
            ("GET", _) => ("404 Not Found", "only /metrics is here\n".to_owned()),
            _ => ("405 Method Not Allowed", "only GET is answered\n".to_owned()),
        },
    };
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n{allow}Content-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    send(stream, &[head.as_bytes(), body.as_bytes()].concat())?;
    stream.shutdown(std::net::Shutdown::Write)
}

/// Writes within the time that a slow reader has, all calls together.
fn send(mut stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let start = Instant::now();
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(start)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn left(start: Instant) -> io::Result<Duration> {
    let left = PATIENCE.saturating_sub(start.elapsed());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

type Line = (String, String);

/// Method and path, or the status that the request gets instead.
fn request_line(mut stream: &TcpStream) -> io::Result<Result<Line, &'static str>> {
    let start = Instant::now();
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let Ok(left) = left(start) else { return Ok(Err("408 Request Timeout")) };
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => head.extend_from_slice(&piece[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(Err("408 Request Timeout"));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if head.windows(4).any(|end| end == b"\r\n\r\n") {
            break;
        }
        let line = head.iter().position(|byte| *byte == b'\n').unwrap_or(head.len());
        if line > LINE_BYTES {
            return Ok(Err("414 URI Too Long"));
        }
        if head.len() > HEAD_BYTES {
            return Ok(Err("431 Request Header Fields Too Large"));
        }
    }
    Ok(parse(&head).ok_or("400 Bad Request"))
}

fn parse(head: &[u8]) -> Option<Line> {
    let line = head.split(|byte| *byte == b'\n').next()?;
    let line = core::str::from_utf8(line).ok()?.trim_end_matches('\r');
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let sound =
        words.next().is_none() && version.starts_with("HTTP/1.") && method.bytes().all(|b| b.is_ascii_uppercase());
    let path = target.split('?').next()?;
    (sound && line.len() <= LINE_BYTES && path.starts_with('/')).then(|| (method.to_owned(), path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lines() {
        let line = |text: &str| parse(text.as_bytes());
        assert_eq!(line("GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n"), Some(("GET".into(), "/metrics".into())));
        for wrong in
            ["", "GET", "GET /", "GET / HTTP/2.0", "get / HTTP/1.1", "GET metrics HTTP/1.1", "GET / HTTP/1.1 x"]
        {
            assert_eq!(line(wrong), None, "{wrong}");
        }
        assert_eq!(line(&format!("GET /{} HTTP/1.1", "a".repeat(LINE_BYTES))), None);
        assert_eq!(parse(b"GET /\xff HTTP/1.1"), None);
    }
}
