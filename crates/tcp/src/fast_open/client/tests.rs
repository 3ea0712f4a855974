use std::vec::Vec;

use super::*;

const C1: [u8; 8] = [1; 8];

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn cookie(bytes: &[u8]) -> FastOpen {
    FastOpen::with_cookie(Cookie::new(bytes).expect("a legal length"))
}

fn server_key(remote: &str) -> ServerKey {
    let local: SocketAddr = "192.0.2.1:40000".parse().expect("an address");
    ServerKey::new(local, remote.parse().expect("an address"), &FastOpenConnect::default())
}

fn cache() -> ClientCache {
    ClientCache::new(1024, Duration::from_secs(3600), KeyedHash::new(&1.into()))
}

struct Bench(ClientCache, ServerKey);

impl Bench {
    fn new() -> Self {
        Bench(cache(), server_key("198.51.100.9:80"))
    }

    /// Returns a bench with a cookie.
    fn known() -> Self {
        let mut bench = Bench::new();
        bench.answer(SynAckClass::Granted, Some(cookie(&C1)), 0);
        bench
    }

    fn answer(&mut self, class: SynAckClass, cookie: Option<FastOpen>, now: u64) {
        let known = self.choose(now).map_or_else(|_| Failures::default(), |attempt| attempt.known);
        self.report(&FastOpenReport::SynAck { class, cookie, known }, now);
    }

    fn report(&mut self, report: &FastOpenReport, now: u64) {
        self.0.on_report(&self.1, report, at(now));
    }

    fn choose(&mut self, now: u64) -> Result<OpenAttempt, OffReason> {
        self.0.choose(&self.1, &FastOpenConnect::default(), None, &PathFacts::default(), at(now))
    }

    fn mode(&mut self, now: u64) -> Result<Mode, OffReason> {
        self.choose(now).map(|attempt| attempt.mode)
    }
}

#[test]
fn without_a_cookie_one_is_asked_for_and_then_used() {
    let mut bench = Bench::new();
    let attempt = bench.choose(0).expect("Fast Open may be used");
    assert_eq!((attempt.mode, attempt.option, attempt.srtt), (Mode::Request, Some(FastOpen::REQUEST), None));
    bench.answer(SynAckClass::Granted, Some(cookie(&C1)), 100);
    let attempt = bench.choose(200).expect("Fast Open may be used");
    assert_eq!((attempt.mode, attempt.option), (Mode::Data, Some(cookie(&C1))));
}

#[test]
fn a_cookie_belongs_to_a_pair_of_addresses_and_a_partition() {
    let mut bench = Bench::known();
    let mode = |bench: &mut Bench, server_key, partition| {
        let connect = FastOpenConnect { partition, ..FastOpenConnect::default() };
        let server_key = ServerKey { path: PathKey { partition, ..server_key }, ..bench.1 };
        bench.0.choose(&server_key, &connect, None, &PathFacts::default(), at(1)).map(|attempt| attempt.mode)
    };
    let path = bench.1.path;
    assert_eq!(mode(&mut bench, path, 0), Ok(Mode::Data));
    assert_eq!(mode(&mut bench, path, 7), Ok(Mode::Request));
    let roamed = PathKey { local: "192.0.2.77".parse().expect("an address"), ..path };
    assert_eq!(mode(&mut bench, roamed, 0), Ok(Mode::Request));
    bench.0.flush(Some(7));
    assert_eq!(mode(&mut bench, path, 0), Ok(Mode::Data));
    bench.0.flush(Some(0));
    assert_eq!(mode(&mut bench, path, 0), Ok(Mode::Request));
}

#[test]
fn the_amount_of_data_follows_the_mss_less_the_option_space() {
    let limit = |mss: Option<u16>, user_mss| {
        let mut bench = Bench::known();
        let facts = PathFacts { mss, ..PathFacts::default() };
        let attempt = bench.0.choose(&bench.1, &FastOpenConnect::default(), user_mss, &facts, at(1));
        attempt.expect("Fast Open may be used").data_limit
    };
    assert_eq!(limit(Some(940), None), 900);
    assert_eq!(limit(Some(1460), None), 1420);
    assert_eq!(limit(Some(10_000), None), 1420);
    assert_eq!(limit(Some(1460), Some(1040)), 1000);
    assert_eq!(limit(None, None), 496);
    assert_eq!(limit(Some(20), None), 0, "no MSS is too small to survive");
}

#[test]
fn cookies_of_every_legal_length_are_kept_and_an_all_zero_one_is_valid() {
    for bytes in [&[0u8; 8][..], &[1; 4], &[2; 16]] {
        let mut bench = Bench::known();
        bench.answer(SynAckClass::Accepted, Some(cookie(bytes)), 1);
        assert_eq!(bench.choose(2).expect("a cookie").option, Some(cookie(bytes)));
    }
    let mut bench = Bench::known();
    bench.answer(SynAckClass::Accepted, None, 1);
    bench.answer(SynAckClass::Accepted, Some(FastOpen::REQUEST), 2);
    assert_eq!(bench.choose(3).expect("a cookie").option, Some(cookie(&C1)), "none does not erase one");
}

#[test]
fn second_dropped_syn_disables_for_240_s_the_third_for_480_s() {
    let mut bench = Bench::known();
    bench.answer(SynAckClass::SynDrop, None, 250);
    assert_eq!(bench.mode(300), Ok(Mode::Data), "one may be chance");
    bench.answer(SynAckClass::SynDrop, None, 10_250);
    assert_eq!(bench.mode(20_000), Err(OffReason::Disabled));
    assert_eq!(bench.mode(250_249), Err(OffReason::Disabled));
    assert_eq!(bench.mode(251_000), Ok(Mode::Data));
    bench.report(&FastOpenReport::Failed(Mode::Data), 300_000);
    assert_eq!(bench.mode(779_999), Err(OffReason::Disabled));
    assert_eq!(bench.mode(780_000), Ok(Mode::Data));
    bench.answer(SynAckClass::Accepted, None, 780_001);
    bench.answer(SynAckClass::SynDrop, None, 780_002);
    assert_eq!(bench.mode(780_003), Ok(Mode::Data), "success forgives");
}

#[test]
fn known_server_is_left_alone_after_six_failures_in_a_row() {
    let mut bench = Bench::known();
    bench.report(&FastOpenReport::Works, 0);
    for lost in 1..=5 {
        bench.answer(SynAckClass::SynDrop, None, lost);
        assert_eq!(bench.mode(lost), Ok(Mode::Data), "{lost} in a row");
    }
    bench.answer(SynAckClass::SynDrop, None, 6);
    assert_eq!(bench.mode(240_005), Err(OffReason::Disabled));
    assert_eq!(bench.mode(240_006), Ok(Mode::Data), "as long as a stranger");
    bench.answer(SynAckClass::SynDrop, None, 240_007);
    assert_eq!(bench.mode(240_008), Err(OffReason::Disabled), "and then it is one");
}

#[test]
fn silence_is_a_sign_of_a_black_hole_a_minute_after_the_last_answer() {
    for sign in [BlackHoleSign::Timeouts, BlackHoleSign::FinOnly, BlackHoleSign::RepeatedSynAck] {
        let mut bench = Bench::known();
        bench.report(&FastOpenReport::Works, 0);
        // An outage, or a change of the address, leaves many connections without an answer.
        for _ in 0..20 {
            bench.report(&FastOpenReport::BlackHole(sign), 60_000);
        }
        assert_eq!(bench.mode(60_000), Ok(Mode::Data), "{sign:?}");
        bench.report(&FastOpenReport::BlackHole(sign), 60_001);
        assert_eq!(bench.mode(60_002), Err(OffReason::Disabled), "{sign:?}");
    }
    // An outage causes no reset.
    let mut bench = Bench::known();
    bench.report(&FastOpenReport::Works, 0);
    bench.report(&FastOpenReport::BlackHole(BlackHoleSign::EarlyReset), 1);
    assert_eq!(bench.mode(2), Err(OffReason::Disabled));
}

/// If another connection's answer arrived first, the answer on this one may have been lost. The second time
/// in a row it is a sign.
#[test]
fn hedge_answered_first_is_a_sign_the_second_time() {
    let hedge_won = FastOpenReport::BlackHole(BlackHoleSign::HedgeWon);
    let mut bench = Bench::known();
    bench.report(&hedge_won, 0);
    assert_eq!(bench.mode(1), Ok(Mode::Data));
    bench.report(&hedge_won, 2);
    assert_eq!(bench.mode(3), Err(OffReason::Disabled));
    // An answer in between interrupts the row.
    let mut bench = Bench::known();
    bench.report(&hedge_won, 0);
    bench.report(&FastOpenReport::Works, 1);
    bench.report(&hedge_won, 2);
    assert_eq!(bench.mode(3), Ok(Mode::Data));
}

#[test]
fn a_failure_concerns_one_port() {
    let mut bench = Bench::known();
    bench.report(&FastOpenReport::Failed(Mode::Data), 0);
    bench.report(&FastOpenReport::Failed(Mode::Data), 1);
    assert_eq!(bench.mode(2), Err(OffReason::Disabled));
    bench.1.port = 443;
    assert_eq!(bench.mode(2), Ok(Mode::Data));
    for port in 1000..1000 + MAX_PORTS as u16 {
        bench.1.port = port;
        bench.report(&FastOpenReport::Failed(Mode::Data), 3);
    }
    bench.1.port = 80;
    assert_eq!(bench.mode(4), Ok(Mode::Data), "the memory is bounded");
}

#[test]
fn three_answers_without_the_data_suspend_it_for_a_minute_and_then_two() {
    let mut bench = Bench::known();
    for (now, class) in
        [(0, SynAckClass::SoftReject), (1, SynAckClass::SoftNegative), (2, SynAckClass::LateReject)]
    {
        assert_eq!(bench.mode(now), Ok(Mode::Data));
        bench.answer(class, None, now);
    }
    assert_eq!(bench.mode(3), Ok(Mode::CookieOnly));
    assert_eq!(bench.mode(60_001), Ok(Mode::CookieOnly));
    assert_eq!(bench.mode(60_002), Ok(Mode::Data));
    for now in [60_003, 60_004, 60_005] {
        bench.answer(SynAckClass::SoftReject, None, now);
    }
    assert_eq!(bench.mode(180_004), Ok(Mode::CookieOnly));
    assert_eq!(bench.mode(180_005), Ok(Mode::Data));
}

/// Many connections that are opened at once meet the limit of the server together.
#[test]
fn answers_to_syns_that_did_not_know_of_each_other_count_once() {
    let mut bench = Bench::known();
    for burst in 0..3 {
        assert_eq!(bench.mode(100 * burst), Ok(Mode::Data));
        let known = bench.choose(100 * burst).expect("Fast Open may be used").known;
        assert_eq!(u64::from(known.refusals), burst);
        for _ in 0..5 {
            let report = FastOpenReport::SynAck { class: SynAckClass::SoftReject, cookie: None, known };
            bench.report(&report, 100 * burst + 50);
        }
    }
    assert_eq!(bench.mode(300), Ok(Mode::CookieOnly), "three bursts, of which each knew of the one before");
}

/// The link is down for a moment. All SYNs that left together are dropped.
#[test]
fn syns_that_left_together_count_as_one_drop() {
    let mut bench = Bench::known();
    bench.answer(SynAckClass::Accepted, None, 0);
    bench.report(&FastOpenReport::Works, 0);
    for generation in 1..=6 {
        let now = 1000 * generation;
        let known = bench.choose(now).expect("six in a row are needed").known;
        for _ in 0..50 {
            bench.report(
                &FastOpenReport::SynAck { class: SynAckClass::SynDrop, cookie: None, known },
                now + 100,
            );
        }
    }
    assert_eq!(bench.mode(6101), Err(OffReason::Disabled));
    let pause = doubled(DISABLE_BASE, 2);
    let over = u64::try_from(pause.as_millis()).expect("a pause") + 6100;
    assert_eq!(bench.mode(over - 1), Err(OffReason::Disabled));
    assert_eq!(bench.mode(over), Ok(Mode::Data), "those that left before the pause do not lengthen it");
}

/// A refusal of a SYN that left when two refusals were known arrives after another SYN was accepted.
#[test]
fn acceptance_before_a_late_refusal_counts() {
    let mut bench = Bench::known();
    bench.answer(SynAckClass::SoftReject, None, 0);
    bench.answer(SynAckClass::SoftReject, None, 1);
    let known = bench.choose(2).expect("Fast Open may be used").known;
    bench.answer(SynAckClass::Accepted, None, 3);
    bench.report(&FastOpenReport::SynAck { class: SynAckClass::SoftReject, cookie: None, known }, 4);
    assert_eq!((known.refusals, bench.mode(5)), (2, Ok(Mode::Data)));
}

#[test]
fn answers_without_the_data_count_only_within_ten_minutes_and_in_a_row() {
    let mut bench = Bench::known();
    for now in [0, 1, 600_002, 600_003] {
        bench.answer(SynAckClass::SoftReject, None, now);
    }
    assert_eq!(bench.mode(600_004), Ok(Mode::Data));
    bench.answer(SynAckClass::Partial, None, 600_005);
    bench.answer(SynAckClass::SoftReject, None, 600_006);
    assert_eq!(bench.mode(600_007), Ok(Mode::Data));
}

#[test]
fn a_server_without_fast_open_is_asked_again_after_ten_minutes() {
    let mut bench = Bench::new();
    bench.answer(SynAckClass::NotSupported, None, 0);
    assert_eq!(bench.mode(599_999), Err(OffReason::NoCookieThere));
    assert_eq!(bench.mode(600_000), Ok(Mode::Request));
}

#[test]
fn after_two_dropped_requests_the_next_waits_one_then_two_hours() {
    let mut bench = Bench::new();
    bench.answer(SynAckClass::ReqDrop, None, 0);
    assert_eq!(bench.mode(0), Ok(Mode::Request), "a single one may have been lost");
    bench.answer(SynAckClass::ReqDrop, None, 0);
    assert_eq!(bench.mode(3_599_999), Err(OffReason::NoCookieThere));
    assert_eq!(bench.mode(3_600_000), Ok(Mode::Request));
    bench.report(&FastOpenReport::Failed(Mode::Request), 3_600_000);
    assert_eq!(bench.mode(10_799_999), Err(OffReason::NoCookieThere));
    assert_eq!(bench.mode(10_800_000), Ok(Mode::Request));
}

#[test]
fn two_black_holes_switch_fast_open_off_and_one_does_not() {
    let mut cache = cache();
    let (a, b) = (server_key("198.51.100.9:80"), server_key("203.0.113.7:80"));
    let hole = FastOpenReport::BlackHole(BlackHoleSign::Timeouts);
    let choose = |cache: &mut ClientCache, remote, now| {
        let connect = FastOpenConnect::default();
        cache
            .choose(&server_key(remote), &connect, None, &PathFacts::default(), at(now))
            .map(|attempt| attempt.mode)
    };
    cache.on_report(&a, &hole, at(0));
    cache.on_report(&a, &hole, at(1));
    assert_eq!(choose(&mut cache, "203.0.113.99:80", 2), Ok(Mode::Request), "one destination");
    assert_eq!(choose(&mut cache, "198.51.100.9:80", 2), Err(OffReason::Disabled));
    cache.on_report(&b, &hole, at(300_000));
    assert_eq!(choose(&mut cache, "203.0.113.99:80", 300_001), Err(OffReason::BlackHole));
    assert_eq!(choose(&mut cache, "203.0.113.99:80", 3_900_000), Ok(Mode::Request));
    cache.on_report(&a, &hole, at(3_900_000));
    cache.on_report(&b, &hole, at(3_900_001));
    assert_eq!(choose(&mut cache, "203.0.113.99:80", 11_100_000), Err(OffReason::BlackHole), "doubled");
    cache.on_report(&a, &FastOpenReport::Works, at(11_200_000));
    cache.on_report(&a, &hole, at(11_260_001));
    cache.on_report(&b, &hole, at(11_260_002));
    assert_eq!(choose(&mut cache, "203.0.113.99:80", 14_800_003), Err(OffReason::BlackHole));
    assert_eq!(choose(&mut cache, "203.0.113.99:80", 14_860_003), Ok(Mode::Request), "one hour again");
}

#[test]
fn recent_answers_of_others_blame_the_destination() {
    let mut cache = cache();
    let hole = FastOpenReport::BlackHole(BlackHoleSign::RepeatedSynAck);
    let stranger = server_key("203.0.113.99:80");
    let mode = |cache: &mut ClientCache, server_key: &ServerKey, now| {
        let connect = FastOpenConnect::default();
        cache.choose(server_key, &connect, None, &PathFacts::default(), at(now)).map(|attempt| attempt.mode)
    };
    cache.on_report(&server_key("192.0.2.1:80"), &FastOpenReport::Works, at(0));
    for remote in ["198.51.100.9:80", "203.0.113.7:80", "203.0.113.8:80"] {
        cache.on_report(&server_key(remote), &hole, at(60_000));
        assert_eq!(mode(&mut cache, &server_key(remote), 60_001), Err(OffReason::Disabled));
    }
    assert_eq!(mode(&mut cache, &stranger, 60_001), Ok(Mode::Request));
    // Loopback shows nothing about the network.
    cache.on_report(&server_key("127.0.0.1:80"), &FastOpenReport::Works, at(119_000));
    cache.on_report(&server_key("198.51.100.10:80"), &hole, at(120_001));
    cache.on_report(&server_key("198.51.100.11:80"), &hole, at(120_001));
    assert_eq!(mode(&mut cache, &stranger, 120_002), Err(OffReason::BlackHole));
}

#[test]
fn loopback_and_old_signs_switch_nothing_off() {
    let mut cache = cache();
    let hole = FastOpenReport::BlackHole(BlackHoleSign::FinOnly);
    cache.on_report(&server_key("127.0.0.1:80"), &hole, at(0));
    cache.on_report(&server_key("127.0.0.2:80"), &hole, at(1));
    cache.on_report(&server_key("198.51.100.9:80"), &hole, at(2));
    cache.on_report(&server_key("203.0.113.7:80"), &hole, at(600_003));
    let other = server_key("203.0.113.99:80");
    let attempt = cache.choose(&other, &FastOpenConnect::default(), None, &PathFacts::default(), at(600_004));
    assert_eq!(attempt.map(|attempt| attempt.mode), Ok(Mode::Request));
}

#[test]
fn a_one_time_cookie_is_taken_out_when_it_is_used() {
    let mut bench = Bench::new();
    let one_time = FastOpenConnect { cookie: ClientCookie::OneTime, ..FastOpenConnect::default() };
    let cookies: Vec<FastOpen> = (0..10).map(|n| cookie(&[n; 16])).collect();
    cookies.iter().for_each(|option| bench.report(&FastOpenReport::OneTime(option.cookie), 0));
    let known = PathFacts::default();
    let mut option = || bench.0.choose(&bench.1, &one_time, None, &known, at(1)).expect("asked").option;
    for expected in &cookies[2..] {
        assert_eq!(option().as_ref(), Some(expected));
    }
    assert_eq!(option(), Some(FastOpen::REQUEST));
}

#[test]
fn a_cache_without_entries_remembers_nothing() {
    let cache = ClientCache::new(0, Duration::ZERO, KeyedHash::new(&1.into()));
    let mut bench = Bench(cache, server_key("198.51.100.9:80"));
    bench.answer(SynAckClass::Granted, Some(cookie(&C1)), 0);
    assert_eq!(bench.mode(1), Ok(Mode::Request));
}
