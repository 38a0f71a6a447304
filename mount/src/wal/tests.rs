use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::*;

type Owned = (u8, Vec<u8>, LogPos, u32, LogPos);

fn open(dir: &Path, start: LogPos) -> (Log, Recovered, Vec<Owned>) {
    let mut records = Vec::new();
    let (log, recovered) =
        Log::open(dir, start, |r| records.push((r.kind, r.head.to_vec(), r.data, r.data_len, r.end)))
            .unwrap();
    assert_eq!(recovered.records, records.len() as u64);
    (log, recovered, records)
}

fn fresh() -> (tempfile::TempDir, Log) {
    let dir = tempfile::tempdir().unwrap();
    let (log, recovered, _) = open(dir.path(), LogPos(0));
    assert_eq!(recovered, Recovered { records: 0, end: LogPos(0), lost_segments: 0 });
    (dir, log)
}

fn heads(records: &[Owned]) -> Vec<Vec<u8>> {
    records.iter().map(|r| r.1.clone()).collect()
}

/// Waits for what another thread does soon; fails after a generous time.
fn until(what: &str, mut check: impl FnMut() -> bool) {
    let began = Instant::now();
    while !check() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what} did not happen");
        std::thread::yield_now();
    }
}

fn count(dir: &Path, extension: &str) -> usize {
    fs::read_dir(dir)
        .unwrap()
        .filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|x| x == extension))
        .count()
}

fn segment_files(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut segments: Vec<_> = all.filter(|p| p.extension().is_some_and(|x| x == "seg")).collect();
    segments.sort();
    segments
}

/// Fills the present segment to less than one more large record.
fn fill_segment(log: &mut Log) -> usize {
    let number = log.append(0, b"filler", &[]).unwrap().start.segment();
    let mut added = 1;
    loop {
        added += 1;
        if log.append(0, b"filler", &vec![7; DATA_BYTES_MAX]).unwrap().start.segment() != number {
            return added;
        }
    }
}

/// Records come back in order with heads and data, over segment borders, and new ones follow them.
#[test]
fn records_survive_reopening() {
    let (dir, mut log) = fresh();
    let mut said = Vec::new();
    for n in 0..40u32 {
        let data = vec![n as u8; if n % 3 == 0 { DATA_BYTES_MAX } else { n as usize }];
        let at = log.append(n as u8, &n.to_le_bytes(), &data).unwrap();
        said.push((n as u8, n.to_le_bytes().to_vec(), at.data, data.len() as u32, at.end));
    }
    assert!(log.bytes_in_use() > 14 << 20);
    drop(log);
    let (mut log, recovered, records) = open(dir.path(), LogPos(0));
    assert_eq!(records, said);
    assert_eq!(recovered.end, said[39].4);
    let after = log.append(9, b"after", b"data").unwrap();
    assert!(after.start >= recovered.end);
    for (kind, _, data, len, _) in &records {
        assert_eq!(log.reader().read(*data, *len as usize).unwrap(), vec![*kind; *len as usize]);
    }
    drop(log);
    let (_, _, records) = open(dir.path(), LogPos(0));
    assert_eq!(records.len(), 41);
    let (_, _, tail) = open(dir.path(), said[37].4);
    assert_eq!(heads(&tail), [38u32.to_le_bytes().to_vec(), 39u32.to_le_bytes().to_vec(), b"after".to_vec()]);
}

/// A tail torn at any byte costs the torn record, no other, and does not come back later.
#[test]
fn torn_tail_at_every_byte() {
    let (dir, mut log) = fresh();
    log.append(1, b"one", b"first").unwrap();
    let last = log.append(2, b"two", b"second record").unwrap();
    drop(log);
    let path = segment_files(dir.path()).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    for cut in last.start.0..last.end.0 {
        let offset = (cut % SEGMENT_BYTES) as usize;
        for zeroed in [false, true] {
            let mut torn = whole.clone();
            if zeroed {
                torn[offset..(last.end.0 % SEGMENT_BYTES) as usize].fill(0);
            } else {
                torn.truncate(offset);
            }
            let copy = tempfile::tempdir().unwrap();
            fs::write(copy.path().join(path.file_name().unwrap()), &torn).unwrap();
            let (mut log, recovered, records) = open(copy.path(), LogPos(0));
            assert_eq!(heads(&records), [b"one".to_vec()], "cut at {cut}");
            assert_eq!(recovered.end, last.start);
            // As long as the torn one, so that anything behind it would fit again.
            log.append(3, b"new", b"second record").unwrap();
            drop(log);
            let (_, _, records) = open(copy.path(), LogPos(0));
            assert_eq!(heads(&records), [b"one".to_vec(), b"new".to_vec()]);
        }
    }
}

/// A flipped byte anywhere in a record ends the replay before it.
#[test]
fn every_flipped_byte_ends_replay() {
    let (dir, mut log) = fresh();
    log.append(1, b"one", b"").unwrap();
    let bad = log.append(2, b"two", b"data").unwrap();
    log.append(3, b"three", b"").unwrap();
    drop(log);
    let path = segment_files(dir.path()).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    for at in bad.start.offset()..bad.end.offset() {
        let mut bytes = whole.clone();
        bytes[at as usize] ^= 1;
        let copy = tempfile::tempdir().unwrap();
        fs::write(copy.path().join(path.file_name().unwrap()), &bytes).unwrap();
        let (_, recovered, _) = open(copy.path(), LogPos(0));
        assert_eq!((recovered.records, recovered.end), (1, bad.start), "byte {at}");
    }
}

/// Records lost in one segment hide the next segment, which is kept aside and never replayed.
#[test]
fn nothing_is_replayed_behind_a_gap() {
    let (dir, mut log) = fresh();
    fill_segment(&mut log);
    let second = log.append(1, b"late", b"").unwrap();
    drop(log);
    let path = &segment_files(dir.path())[0];
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[0xff; 8], 2 << 20).unwrap();
    let (mut log, recovered, _) = open(dir.path(), LogPos(0));
    // The log may have moved on to its first spare meanwhile: one segment more.
    assert!((1..=2).contains(&recovered.lost_segments), "{}", recovered.lost_segments);
    assert!(recovered.end.0 < 2 << 20);
    assert_eq!(count(dir.path(), "lost"), recovered.lost_segments);
    let new = log.append(2, b"new", b"").unwrap();
    assert!(new.start.segment() > second.start.segment(), "numbers are never used twice");
    drop(log);
    let (_, recovered, records) = open(dir.path(), LogPos(0));
    assert_eq!(records.last().unwrap().1, b"new");
    assert_eq!(recovered.lost_segments, 0);
}

/// Released segments are used again, and their old records never come back.
#[test]
fn recycled_segments_never_replay() {
    let (dir, mut log) = fresh();
    let mut start = LogPos(0);
    for round in 0..6u8 {
        fill_segment(&mut log);
        start = log.append(round, b"keep from here", b"").unwrap().start;
        log.release_before(start);
        until("recycling", || segment_files(dir.path()).len() <= 2 && count(dir.path(), "spare") > 0);
    }
    let end = log.append(99, b"last", b"").unwrap().end;
    let names = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert!(names.filter(|n| n.ends_with(".spare") && n.len() == 22).count() > 0, "a segment was recycled");
    assert!(count(dir.path(), "spare") <= 5);
    drop(log);
    let (mut log, recovered, records) = open(dir.path(), start);
    assert_eq!(heads(&records), [b"keep from here".to_vec(), b"last".to_vec()]);
    assert_eq!(recovered.end, end);
    // Into a recycled file, short: what lies behind the record is an old one.
    log.append(1, b"short", b"").unwrap();
    drop(log);
    let (_, _, records) = open(dir.path(), start);
    assert_eq!(records.len(), 3);
}

/// A reader that pinned a segment reads its bytes after release and reuse; one that did not gets an error.
#[test]
fn pins_outlive_release() {
    let (dir, mut log) = fresh();
    let first = log.append(1, b"head", b"precious").unwrap();
    let reader = log.reader();
    let pin = reader.pin(first.data, 8).unwrap();
    fill_segment(&mut log);
    let end = log.end();
    log.release_before(end);
    for _ in 0..4 {
        fill_segment(&mut log);
        let end = log.end();
        log.release_before(end);
    }
    assert_eq!(pin.read(first.data, 8).unwrap(), b"precious");
    assert!(matches!(reader.read(first.data, 8), Err(LogError::NotHeld { .. })));
    assert!(pool::segment_path(dir.path(), 0).exists());
    drop(pin);
    until("the file's end", || !pool::segment_path(dir.path(), 0).exists());
}

#[test]
fn reads_outside_the_log_are_errors() {
    let (_dir, mut log) = fresh();
    let at = log.append(1, b"h", b"data").unwrap();
    let reader = log.reader();
    assert_eq!(reader.read(at.data, 4).unwrap(), b"data");
    for (pos, len) in [(at.data, 5), (at.end, 1), (LogPos(u64::MAX), 1), (at.data, usize::MAX)] {
        assert!(matches!(reader.read(pos, len), Err(LogError::NotHeld { .. })), "{pos:?} {len}");
    }
    let big = vec![0; DATA_BYTES_MAX + 1];
    assert!(matches!(log.append(1, b"", &big), Err(LogError::TooLarge { .. })));
    assert!(matches!(log.append(1, &big, b""), Err(LogError::TooLarge { .. })));
    assert_eq!(log.end(), at.end);
}

/// A record may fill a segment to its last byte, and everything works across that border.
#[test]
fn a_record_may_end_at_the_border() {
    let (dir, mut log) = fresh();
    until("a spare", || log.pool.is_ready());
    let mut last = log.append(0, b"", b"").unwrap();
    while last.end.0 < SEGMENT_BYTES {
        let room = (SEGMENT_BYTES - last.end.0) as usize - record::HEADER_BYTES;
        // Never less room than a header.
        let head =
            if room <= HEAD_BYTES_MAX { room } else { HEAD_BYTES_MAX.min(room - record::HEADER_BYTES) };
        last = log.append(1, &vec![1; head], b"").unwrap();
    }
    assert_eq!(last.end, LogPos(SEGMENT_BYTES));
    assert_eq!(log.reader().read(last.data, 0).unwrap(), b"");
    let next = log.append(2, b"next", b"data").unwrap();
    assert_eq!(next.start, last.end);
    log.sync().sync_to(next.end).unwrap();
    log.release_before(last.end);
    assert_eq!(log.reader().read(next.data, 4).unwrap(), b"data");
    drop(log);
    let (_, recovered, records) = open(dir.path(), last.end);
    assert_eq!((recovered.end, heads(&records)), (next.end, vec![b"next".to_vec()]));
}

/// A failed append changes nothing, even when its bytes reached the file, and the log goes on.
#[test]
fn failed_append_changes_nothing() {
    for whole_record_landed in [false, true] {
        for first_in_segment in [false, true] {
            let (dir, mut log) = fresh();
            // The spare is taken, so that a growing file does not give way to it in the middle of the test.
            until("a spare", || log.pool.is_ready());
            if !first_in_segment {
                log.append(1, b"before", b"").unwrap();
            }
            let end = log.end();
            *log.shared.faults.write.lock() = Some((libc::ENOSPC, 11));
            let error = log.append(2, b"", b"").unwrap_err();
            assert!(matches!(error, LogError::NoSpace { .. }), "{error}");
            assert_eq!(log.end(), end);
            let after = log.append(3, b"after", b"").unwrap();
            assert!(after.start.segment() > end.segment());
            log.sync().sync_to(after.end).unwrap();
            drop(log);
            if whole_record_landed {
                let place = record::Place { start: end, prev: end };
                let path = pool::segment_path(dir.path(), end.segment());
                let file =
                    fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
                file.write_all_at(&record::encode_header(&place, 2, b"", b""), end.offset()).unwrap();
            }
            let (_, _, records) = open(dir.path(), LogPos(0));
            let expected = if first_in_segment { vec![3] } else { vec![1, 3] };
            assert_eq!(records.iter().map(|r| r.0).collect::<Vec<_>>(), expected);
        }
    }
}

/// A failed sync is told to every caller that needs the segment, until it is released; its data stays readable and
/// the log goes on in another segment.
#[test]
fn failed_sync_is_told_to_all() {
    let (_dir, mut log) = fresh();
    let first = log.append(1, b"one", b"data").unwrap();
    let sync = log.sync();
    let (started, wait_started) = channel();
    let (go, wait_go) = channel::<()>();
    *log.shared.faults.sync.lock() = Some(libc::EIO);
    *log.shared.faults.sync_hook.lock() = Some(Box::new(move || {
        started.send(()).unwrap();
        let _ = wait_go.recv();
    }));
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4).map(|_| scope.spawn(|| sync.sync_to(first.end))).collect();
        wait_started.recv().unwrap();
        until("three waiters", || sync.waiting() == 3);
        drop(go);
        for caller in callers {
            let error = caller.join().unwrap().unwrap_err();
            assert!(matches!(error, LogError::Sync { .. }), "{error}");
        }
    });
    assert_eq!(sync.calls(), 1, "a failed sync is never tried again");
    *log.shared.faults.sync_hook.lock() = None;
    let second = log.append(2, b"two", b"").unwrap();
    assert!(second.start.segment() > first.start.segment());
    assert!(sync.sync_to(second.end).is_err(), "replay would end before it");
    assert_eq!(log.reader().read(first.data, 4).unwrap(), b"data");
    log.release_before(first.end);
    sync.sync_to(second.end).unwrap();
}

/// Many callers share few syncs, and none returns before a sync that began after its append.
#[test]
fn syncs_are_shared() {
    let (_dir, mut log) = fresh();
    let sync = log.sync();
    let first = log.append(0, b"first", b"").unwrap();
    let (started, wait_started) = channel();
    let (go, wait_go) = channel::<()>();
    *log.shared.faults.sync_hook.lock() = Some(Box::new(move || {
        started.send(()).unwrap();
        let _ = wait_go.recv();
    }));
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| sync.sync_to(first.end).unwrap());
        wait_started.recv().unwrap();
        for n in 0..20u8 {
            let end = log.append(n, b"more", b"").unwrap().end;
            let sync = sync.clone();
            scope.spawn(move || {
                sync.sync_to(end).unwrap();
                assert!(sync.durable() >= end);
            });
        }
        until("all waiters", || sync.waiting() == 20);
        drop(go);
        leader.join().unwrap();
    });
    // The spare may have come in between: then the second round syncs two segments.
    assert!((2..=3).contains(&sync.calls()), "{} syncs for 21 callers", sync.calls());
    let calls = sync.calls();
    sync.sync_to(log.end()).unwrap();
    assert_eq!(sync.calls(), calls, "durable already");
}

/// After a restart, what was replayed counts as not durable until it is synced.
#[test]
fn recovered_records_are_synced_when_asked() {
    let (dir, mut log) = fresh();
    let end = log.append(1, b"one", b"").unwrap().end;
    drop(log);
    let (log, _, _) = open(dir.path(), LogPos(0));
    assert_eq!(log.sync().durable(), LogPos(0));
    log.sync().sync_to(end).unwrap();
    assert_eq!(log.sync().calls(), 1);
}

/// Appends, restarts, torn tails and releases in random order agree with a plain list.
#[test]
fn random_histories_agree_with_a_list() {
    for seed in 0..12u64 {
        let dir = tempfile::tempdir().unwrap();
        let mut random = Random(seed + 1);
        let mut start = LogPos(0);
        let mut model: Vec<(u8, Vec<u8>, Vec<u8>, Appended)> = Vec::new();
        let (mut log, _, _) = open(dir.path(), start);
        for step in 0..120u32 {
            match random.below(20) {
                0 => {
                    drop(log);
                    let reopened = open(dir.path(), start);
                    log = reopened.0;
                    let expected: Vec<Owned> = model
                        .iter()
                        .map(|(kind, head, data, at)| {
                            (*kind, head.clone(), at.data, data.len() as u32, at.end)
                        })
                        .collect();
                    assert!(reopened.2 == expected, "seed {seed} step {step}");
                }
                1 if !model.is_empty() => {
                    let gone = random.below(model.len() as u64) as usize;
                    start = model[gone].3.end;
                    log.release_before(start);
                    model.drain(..=gone);
                }
                2 => {
                    let bytes = random.below(41) as usize;
                    *log.shared.faults.write.lock() = Some((libc::EIO, bytes));
                    log.append(0, b"", b"").unwrap_err();
                }
                3 => log.sync().sync_to(log.end()).unwrap(),
                _ => {
                    let kind = random.below(256) as u8;
                    let head = vec![kind; random.below(300) as usize];
                    let len = if random.below(3) == 0 { random.below(1 << 20) } else { random.below(5000) };
                    let data = vec![step as u8; len as usize];
                    let at = log.append(kind, &head, &data).unwrap();
                    model.push((kind, head, data, at));
                }
            }
            if let Some((_, _, data, at)) = model.get(random.below(model.len().max(1) as u64) as usize) {
                assert_eq!(&log.reader().read(at.data, data.len()).unwrap(), data);
            }
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Readers in other threads see whole data while the log grows.
#[test]
fn reads_run_beside_appends() {
    let (_dir, mut log) = fresh();
    let (told, wait) = channel::<(Appended, u8)>();
    let reader = log.reader();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for (at, byte) in wait {
                let mut buffer = vec![0; 30_000];
                reader.read_into(at.data, &mut buffer).unwrap();
                assert!(buffer.iter().all(|&b| b == byte));
            }
        });
        for n in 0..1200u32 {
            let at = log.append(0, b"h", &vec![n as u8; 30_000]).unwrap();
            told.send((at, n as u8)).unwrap();
        }
        drop(told);
    });
}

/// The helper keeps one file of full length ready, and the log moves onto it.
#[test]
fn a_spare_is_kept_ready() {
    let (dir, mut log) = fresh();
    until("a spare", || log.pool.is_ready());
    log.append(1, b"x", b"").unwrap();
    let segment = segment_files(dir.path()).pop().unwrap();
    assert_eq!(fs::metadata(segment).unwrap().len(), SEGMENT_BYTES);
    until("another", || log.pool.is_ready());
}
