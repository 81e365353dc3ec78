// An all-to-all between processes, one for each rank, through the C interface from Rust. Every byte is checked.
//
//   rustc -O all_to_all.rs -l rails
//   all_to_all SOCKET_DIR WORLD RANK
//
// Where librailsd-client-dev is not installed: rustc -O all_to_all.rs -L DIR -l rails, and LD_LIBRARY_PATH=DIR for the program, with the
// folder of librails.so, build/release/client/c after ./dev build.
//
// SOCKET_DIR is that of the daemon of the rank's node. The declarations follow rails/rails.h, which explains them.

use std::ffi::{c_char, c_void, CStr, CString};
use std::{env, mem, process, ptr, slice};

#[repr(C)]
struct RailsError {
    code: i32,
    text: *const c_char,
    node: *const c_char,
    ranks: *const u32,
    rank_count: usize,
}

#[repr(C)]
struct ClientOptions {
    size: usize,
    socket_dir: *const c_char,
    client_name: *const c_char,
    connect_timeout_ns: i64,
    spin_ns: i64,
}

// A library that knows more fields sees by `size` that they are absent, and takes their defaults.
#[repr(C)]
struct GroupOptions {
    size: usize,
    name: *const c_char,
    join_key: *const c_char,
    world_size: u32,
    rank: u32,
    timeout_ns: i64,
}

#[repr(C)]
struct Buffers {
    size: usize,
    send: *mut c_void,
    send_offset: u64,
    send_bytes: *const u64,
    receive: *mut c_void,
    receive_offset: u64,
    receive_bytes: *const u64,
}

#[link(name = "rails")]
extern "C" {
    fn rails_error_free(error: *mut RailsError);
    fn rails_connect(options: *const ClientOptions, client: *mut *mut c_void) -> *mut RailsError;
    fn rails_close(client: *mut c_void);
    fn rails_segment_alloc(client: *mut c_void, length: u64, options: *const c_void, segment: *mut *mut c_void) -> *mut RailsError;
    fn rails_segment_data(segment: *const c_void) -> *mut u8;
    fn rails_segment_free(segment: *mut c_void);
    fn rails_join(client: *mut c_void, options: *const GroupOptions, group: *mut *mut c_void) -> *mut RailsError;
    fn rails_group_free(group: *mut c_void);
    fn rails_all_to_all_v(group: *mut c_void, buffers: *const Buffers, options: *const c_void, job: *mut *mut c_void) -> *mut RailsError;
    fn rails_job_wait(job: *mut c_void, timeout_ns: i64, done: *mut i32) -> *mut RailsError;
    fn rails_job_free(job: *mut c_void);
}

/// Ends the program if there is an error.
fn check(error: *mut RailsError, what: &str) {
    if error.is_null() {
        return;
    }
    unsafe {
        eprintln!("{what}: {}", CStr::from_ptr((*error).text).to_string_lossy());
        rails_error_free(error);
    }
    process::exit(1);
}

/// Calls a function whose last argument gets a handle.
fn make(what: &str, call: impl FnOnce(*mut *mut c_void) -> *mut RailsError) -> *mut c_void {
    let mut handle = ptr::null_mut();
    check(call(&mut handle), what);
    handle
}

/// Bytes from a rank to another.
fn length(from: u64, to: u64) -> u64 {
    4096 * ((from * 7 + to * 5) % 4 + 1) + from
}

fn pattern(from: u64, to: u64, i: u64) -> u8 {
    (i * 31 + (i >> 8) + from * 17 + to * 101) as u8
}

fn main() {
    let words: Vec<String> = env::args().collect();
    let [_, sockets, world, rank] = words.as_slice() else {
        eprintln!("usage: all_to_all SOCKET_DIR WORLD RANK");
        process::exit(2);
    };
    let (world, rank): (u64, u64) = (world.parse().expect("WORLD"), rank.parse().expect("RANK"));
    let sends: Vec<u64> = (0..world).map(|peer| length(rank, peer)).collect();
    let receives: Vec<u64> = (0..world).map(|peer| length(peer, rank)).collect();
    let (sent, received): (u64, u64) = (sends.iter().sum(), receives.iter().sum());

    let (sockets, name) = (CString::new(sockets.as_str()).unwrap(), CString::new("all_to_all.rs").unwrap());
    let options = ClientOptions { size: mem::size_of::<ClientOptions>(), socket_dir: sockets.as_ptr(), client_name: name.as_ptr(), connect_timeout_ns: 0, spin_ns: 0 };
    let client = make("connecting", |out| unsafe { rails_connect(&options, out) });
    let send = make("the send segment", |out| unsafe { rails_segment_alloc(client, sent, ptr::null(), out) });
    let receive = make("the receive segment", |out| unsafe { rails_segment_alloc(client, received, ptr::null(), out) });
    let group_options = GroupOptions { size: mem::size_of::<GroupOptions>(), name: name.as_ptr(), join_key: ptr::null(), world_size: world as u32, rank: rank as u32, timeout_ns: 0 };
    let group = make("joining", |out| unsafe { rails_join(client, &group_options, out) });

    // From the submission to the end of the job its memory belongs to the daemon, so no slice of it may live then.
    let bytes = unsafe { slice::from_raw_parts_mut(rails_segment_data(send), sent as usize) };
    let outgoing = sends.iter().zip(0..).flat_map(|(&count, to)| (0..count).map(move |i| pattern(rank, to, i)));
    bytes.iter_mut().zip(outgoing).for_each(|(at, byte)| *at = byte);
    let buffers = Buffers { size: mem::size_of::<Buffers>(), send, send_offset: 0, send_bytes: sends.as_ptr(), receive, receive_offset: 0, receive_bytes: receives.as_ptr() };
    let job = make("submitting", |out| unsafe { rails_all_to_all_v(group, &buffers, ptr::null(), out) });
    let mut done = 0;
    while done == 0 {
        check(unsafe { rails_job_wait(job, 60_000_000_000, &mut done) }, "the job");
    }
    let bytes = unsafe { slice::from_raw_parts(rails_segment_data(receive), received as usize) };
    let expected = receives.iter().zip(0..).flat_map(|(&count, from)| (0..count).map(move |i| pattern(from, rank, i)));
    let right = bytes.iter().copied().eq(expected);
    println!("rank {rank}: {}", if right { "every byte is right" } else { "a byte is WRONG" });

    unsafe {
        rails_job_free(job);
        rails_group_free(group);
        rails_segment_free(send);
        rails_segment_free(receive);
        rails_close(client);
    }
    process::exit(if right { 0 } else { 1 });
}
