//! A page and its load time: objects that depend on each other, fetched as a browser does.
//!
//! A page is a graph of activities. A download is a request and its response on a connection to one of the
//! page's hosts. A computation takes a time and blocks only the activities that wait for it. Connections are
//! persistent (HTTP/1.1), at most six per host; if none is free, downloads wait in order. The page-load time
//! is the time from the start to the end of the last activity, like `loadEventEnd - navigationStart`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_tcp::fast_open::FastOpenConnect;
use brisk_tcp::{ConnId, ConnectConfig, ListenConfig, StackConfig, TcpConfig};
use brisk_wire::Instant;
use rand_core::RngCore;
use thiserror::Error;

use crate::addresses::{CLIENT, PORT};
use crate::application::{Browser, Server};
use crate::fast_open::{self, PriorKnowledge};
use crate::host::{AppId, HostId};
use crate::transaction::{TransactionError, TransactionResult};
use crate::world::{Arena, Side, World};

/// Maximum number of activities of a page.
pub const MAX_ACTIVITIES: usize = 20_000;
/// Maximum number of hosts of a page.
pub const MAX_HOSTS: usize = 1_000;

/// Seed of the earlier page load; nothing on its path is random.
const VISIT_SEED: u64 = 1;
/// Address of the first host of a page; the other hosts have the next addresses.
const FIRST_SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);

/// A step of a page load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Activity {
    /// The kind of activity.
    pub work: Work,
    /// Events that must all have happened before it begins.
    pub waits: Vec<Wait>,
}

/// The work of an activity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Fetches an object.
    Download {
        /// Host, counted from 0.
        host: usize,
        /// Bytes of the request, headers included.
        request: u32,
        /// Bytes of the response, headers included.
        response: u64,
        /// Think time of the server.
        think: Duration,
    },
    /// Computes for this long.
    Compute(Duration),
}

/// An event that an activity waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// The end of another activity.
    End(usize),
    /// Another activity began this long ago.
    Begun(usize, Duration),
    /// This many thousandths of an object have arrived: a parser finds a reference in the middle of it.
    Share(usize, u16),
}

impl Wait {
    /// Returns the activity that is waited for.
    pub fn on(&self) -> usize {
        match self {
            Wait::End(index) | Wait::Begun(index, _) | Wait::Share(index, _) => *index,
        }
    }
}

/// A page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Name for reports.
    pub label: String,
    hosts: usize,
    activities: Vec<Activity>,
}

/// Why activities do not form a page.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PageError {
    /// There is no download.
    #[error("page '{0}' has nothing to download")]
    Empty(String),
    /// Too many activities or hosts.
    #[error("page '{0}' has more than 20000 activities or 1000 hosts")]
    TooLarge(String),
    /// An activity waits for one that does not exist.
    #[error("page '{page}': activity {activity} waits for number {on}, which does not exist")]
    Dangling {
        /// The page.
        page: String,
        /// Counted from 0.
        activity: usize,
        /// The activity that it waits for.
        on: usize,
    },
    /// Activities wait for each other.
    #[error("page '{page}': activity {activity} waits for itself, through others")]
    Circle {
        /// The page.
        page: String,
        /// One of these activities, counted from 0.
        activity: usize,
    },
}

impl Page {
    /// Returns a page, after a check that every activity can begin.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn new(label: &str, activities: Vec<Activity>) -> Result<Page, PageError> {
        let host_of = |activity: &Activity| match activity.work {
            Work::Download { host, .. } => Some(host),
            Work::Compute(_) => None,
        };
        let page = label.to_owned();
        let Some(hosts) = activities.iter().filter_map(host_of).max().map(|last| last + 1) else {
            return Err(PageError::Empty(page));
        };
        if activities.len() > MAX_ACTIVITIES || hosts > MAX_HOSTS {
            return Err(PageError::TooLarge(page));
        }
        for (activity, waits) in activities.iter().map(|activity| &activity.waits).enumerate() {
            if let Some(wait) = waits.iter().find(|wait| wait.on() >= activities.len()) {
                return Err(PageError::Dangling { page, activity, on: wait.on() });
            }
        }
        match first_in_a_circle(&activities) {
            Some(activity) => Err(PageError::Circle { page, activity }),
            None => Ok(Page { label: page, hosts, activities }),
        }
    }

    /// Returns the activities.
    pub fn activities(&self) -> &[Activity] {
        &self.activities
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Returns the number of objects.
    pub fn objects(&self) -> usize {
        self.activities.iter().filter(|activity| matches!(activity.work, Work::Download { .. })).count()
    }

    /// Returns the page with other computation times: each is up to `spread` thousandths shorter or longer,
    /// drawn from `seed`. Two loads of a browser never compute for the same time.
    fn varied(&self, spread: u16, seed: u64) -> Page {
        let mut page = self.clone();
        let mut rng = brisk_link::seeds::rng(seed, "computation");
        let spread = u128::from(spread.min(1000));
        for activity in &mut page.activities {
            if let Work::Compute(takes) = &mut activity.work {
                let drawn = u128::from(rng.next_u32()) * 2 * spread / u128::from(u32::MAX);
                *takes = Duration::from_nanos((takes.as_nanos() * (1000 - spread + drawn) / 1000) as u64);
            }
        }
        page
    }

    /// Returns the sum of the response lengths in bytes.
    pub fn bytes(&self) -> u64 {
        let response = |activity: &Activity| match activity.work {
            Work::Download { response, .. } => response,
            Work::Compute(_) => 0,
        };
        self.activities.iter().map(response).sum()
    }
}

/// Returns an activity that can never begin. (Kahn's algorithm: the activities that remain are part of a
/// circle, or wait for one that is.)
fn first_in_a_circle(activities: &[Activity]) -> Option<usize> {
    let mut waiting: Vec<usize> = activities.iter().map(|activity| activity.waits.len()).collect();
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); activities.len()];
    for (index, activity) in activities.iter().enumerate() {
        activity.waits.iter().for_each(|wait| followers[wait.on()].push(index));
    }
    let mut ready: Vec<usize> = (0..activities.len()).filter(|index| waiting[*index] == 0).collect();
    while let Some(done) = ready.pop() {
        for follower in std::mem::take(&mut followers[done]) {
            waiting[follower] -= 1;
            if waiting[follower] == 0 {
                ready.push(follower);
            }
        }
    }
    waiting.iter().position(|waits| *waits > 0)
}

/// A page load to be simulated.
#[derive(Clone, Debug)]
pub struct LoadSpec<'a> {
    /// The path to all hosts of the page.
    pub link: &'a LinkSpec,
    /// The page.
    pub page: &'a Page,
    /// The browser's TCP.
    pub client: TcpConfig,
    /// The servers' TCP.
    pub server: TcpConfig,
    /// State after an earlier visit to the hosts ([`prior_knowledge`]); default `None`: no earlier visit.
    pub known: Option<&'a PriorKnowledge>,
    /// True if both ends use Fast Open. Default false.
    pub fast_open: bool,
    /// Maximum deviation of a computation from its time in the page, in thousandths of that time: 0 to 1000,
    /// default 0. It is drawn for every load.
    pub spread: u16,
    /// Maximum duration; default 600 s of virtual time.
    pub limit: Duration,
}

impl<'a> LoadSpec<'a> {
    /// Returns a load with the default TCP at both ends, without Fast Open.
    pub fn new(link: &'a LinkSpec, page: &'a Page) -> Self {
        LoadSpec {
            link,
            page,
            client: TcpConfig::default(),
            server: TcpConfig::default(),
            known: None,
            fast_open: false,
            spread: 0,
            limit: Duration::from_secs(600),
        }
    }
}

/// The outcome of a page load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadResult {
    /// Time to the end of the last activity; `None` if the page was not loaded.
    pub load: Option<Duration>,
    /// Time to the end of the first download, the document.
    pub first_object: Option<Duration>,
    /// Connections that were opened.
    pub connections: u64,
    /// IP bytes that the browser sent, lost ones included.
    pub wire_up: u64,
    /// IP bytes that the servers sent, lost ones included.
    pub wire_down: u64,
    /// Packets dropped on the path.
    pub dropped: u64,
    /// The sums of the counters of the connections that were open at the end.
    pub counted: TransactionResult,
}

impl LoadResult {
    /// Returns the load as one transaction whose payload is the page.
    pub fn as_transaction(&self, page: &Page) -> TransactionResult {
        let LoadResult { load, first_object, connections: _, wire_up, wire_down, dropped, counted } = *self;
        TransactionResult {
            completion: load,
            first_byte: first_object,
            wire_bytes_up: wire_up,
            wire_bytes_down: wire_down,
            payload_bytes: load.map_or(0, |_| page.bytes()),
            dropped,
            ..counted
        }
    }
}

/// Loads a page once. All random choices derive from the seed.
///
/// # Errors
/// Those of [`crate::transaction()`]; a load that does not end is a result.
pub fn load(spec: &LoadSpec<'_>, seed: u64, arena: &mut Arena) -> Result<LoadResult, TransactionError> {
    let Loaded { world, client, browser, serving } = play(spec, seed, arena)?;
    let result = match world.app::<Browser>(browser) {
        Some(browser) => LoadResult {
            load: browser.load_time(),
            first_object: browser.first_object(),
            connections: browser.connections(),
            wire_up: world.bytes_sent_by(Side::A),
            wire_down: world.bytes_sent_by(Side::B),
            dropped: world.dropped(),
            counted: counted(&world, client, browser.open(), &serving),
        },
        None => LoadResult::default(),
    };
    *arena = world.into_arena();
    Ok(result)
}

/// A world in which a page has been loaded.
struct Loaded {
    world: World,
    client: HostId,
    browser: AppId,
    serving: Vec<(HostId, AppId)>,
}

fn play(spec: &LoadSpec<'_>, seed: u64, arena: &mut Arena) -> Result<Loaded, TransactionError> {
    let link = std::slice::from_ref(spec.link);
    let mut world = World::in_arena(link, seed, std::mem::take(arena));
    let client = world.add_host(Side::A, "browser", &[CLIENT], StackConfig::default())?;
    if let Some(prior_knowledge) = spec.known {
        prior_knowledge.recall(world.stack_mut(client));
    }
    let servers: Vec<SocketAddr> = addresses(spec.page).map(|ip| SocketAddr::new(ip, PORT)).collect();
    let mut serving = Vec::new();
    for (index, address) in servers.iter().copied().enumerate() {
        let stack = StackConfig { fast_open: fast_open::keys(), ..StackConfig::default() };
        let host = world.add_host(Side::B, &format!("server {index}"), &[address.ip()], stack)?;
        let listen = ListenConfig {
            tcp: spec.server.clone(),
            fast_open: spec.fast_open.then(|| fast_open::listening(&spec.server)),
            ..ListenConfig::default()
        };
        serving.push((host, world.add_app(host, Instant::ZERO, Server::new(address, listen))));
    }
    let connect = ConnectConfig {
        tcp: spec.client.clone(),
        fast_open: spec.fast_open.then(FastOpenConnect::default),
        ..ConnectConfig::default()
    };
    let page = spec.page.varied(spec.spread, seed);
    let browser = world.add_app(client, Instant::ZERO, Browser::new(page, servers, connect));
    let over = |world: &World| world.app::<Browser>(browser).is_some_and(|browser| browser.is_over());
    world.run_while(Instant::ZERO + spec.limit, over);
    Ok(Loaded { world, client, browser, serving })
}

/// Returns the sums of the counters of the browser's and of the servers' connections.
fn counted(
    world: &World,
    client: HostId,
    open: impl Iterator<Item = ConnId>,
    serving: &[(HostId, AppId)],
) -> TransactionResult {
    let mut sum = TransactionResult::default();
    let mut add =
        |host, id| world.stack(host).conn_stats(id).iter().for_each(|stats| sum.add(&stats.counters));
    open.for_each(|id| add(client, id));
    for (host, app) in serving {
        world.app::<Server>(*app).iter().flat_map(|app| app.connections()).for_each(|id| add(*host, id));
    }
    sum
}

/// Returns a browser's state after earlier visits to the hosts of a page: the cookies, and the round-trip
/// times of an earlier load. That load used the path without losses, but with queueing.
///
/// # Errors
/// Those of [`load`].
pub fn prior_knowledge(link: &LinkSpec, page: &Page) -> Result<PriorKnowledge, TransactionError> {
    let servers: Vec<IpAddr> = addresses(page).collect();
    let cookies = PriorKnowledge::with(&servers, link)?;
    let lossless = fast_open::lossless(link);
    let visit = LoadSpec { known: Some(&cookies), fast_open: true, ..LoadSpec::new(&lossless, page) };
    let Loaded { world, client, .. } = play(&visit, VISIT_SEED, &mut Arena::default())?;
    Ok(PriorKnowledge::of_client(world.stack(client), world.now()))
}

fn addresses(page: &Page) -> impl Iterator<Item = IpAddr> {
    // There are at most MAX_HOSTS addresses, so the second octet does not change.
    let address = |index: usize| IpAddr::V4(Ipv4Addr::from_bits(FIRST_SERVER.to_bits() + index as u32));
    (0..page.hosts()).map(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn download(host: usize, response: u64, waits: Vec<Wait>) -> Activity {
        Activity { work: Work::Download { host, request: 300, response, think: Duration::ZERO }, waits }
    }

    fn compute(ms: u64, waits: Vec<Wait>) -> Activity {
        Activity { work: Work::Compute(Duration::from_millis(ms)), waits }
    }

    fn ms(result: Option<Duration>) -> u128 {
        result.expect("the page is loaded").as_millis()
    }

    fn loaded(page: &Page, fast_open: bool) -> LoadResult {
        let link = LinkSpec::parse("--rtt 100ms").unwrap();
        let known = prior_knowledge(&link, page).unwrap();
        let spec = LoadSpec { known: fast_open.then_some(&known), fast_open, ..LoadSpec::new(&link, page) };
        load(&spec, 1, &mut Arena::default()).unwrap()
    }

    #[test]
    fn objects_of_one_host_share_six_connections() {
        // The document, then 13 images: six start on five new connections and the first one, then six more,
        // then one.
        let mut activities = vec![download(0, 1_000, vec![])];
        activities.extend((0..13).map(|_| download(0, 1_000, vec![Wait::End(0)])));
        let page = Page::new("images", activities).unwrap();
        assert_eq!((page.hosts(), page.objects(), page.bytes()), (1, 14, 14_000));
        let plain = loaded(&page, false);
        // The document takes 200 ms. Up to 400 ms, the old connection fetches two objects, and each of five
        // new connections, which begin with a handshake, fetches one. Up to 500 ms, all six fetch one each.
        assert_eq!((ms(plain.first_object), plain.connections), (200, 6));
        assert_eq!(ms(plain.load), 500);
        // With Fast Open every response takes one round trip: 100 ms, then 6, 6 and 1 downloads.
        let fast = loaded(&page, true);
        assert_eq!((ms(fast.first_object), fast.connections, ms(fast.load)), (100, 6, 400));
    }

    #[test]
    fn computations_take_their_time_and_objects_wait_for_them() {
        let page = Page::new(
            "script",
            vec![
                download(0, 1_000, vec![]),
                compute(70, vec![Wait::End(0)]),
                download(1, 1_000, vec![Wait::End(1)]),
                compute(5, vec![Wait::Begun(1, Duration::from_millis(30))]),
            ],
        );
        let result = loaded(&page.unwrap(), false);
        assert_eq!((ms(result.load), result.connections), (200 + 70 + 200, 2));
    }

    #[test]
    fn a_parser_finds_an_object_in_the_middle_of_another() {
        let link = LinkSpec::parse("--rtt 100ms --rate 1mbit").unwrap();
        let at = |share| {
            let page = Page::new(
                "parser",
                vec![download(0, 100_000, vec![]), download(1, 1_000, vec![Wait::Share(0, share)])],
            );
            let page = page.unwrap();
            load(&LoadSpec::new(&link, &page), 1, &mut Arena::default()).unwrap().load.unwrap()
        };
        assert!(at(100) < at(1000) - Duration::from_millis(150), "{:?} {:?}", at(100), at(1000));
    }

    #[test]
    fn queueing_of_connections_of_a_page_does_not_count_as_loss() {
        // Thirty SYNs with a request, each of which takes 14 ms on the uplink, to three hosts with a
        // round-trip time of 20 ms.
        let link = LinkSpec::parse("--rtt 20ms --rate 4mbit/256kbit --queue 128kB").unwrap();
        let mut activities = vec![download(0, 20_000, vec![])];
        activities
            .extend((0..30).map(|n: u16| download(usize::from(n % 3), 9_000, vec![Wait::Share(0, 30 * n)])));
        let page = Page::new("thin", activities).unwrap();
        let known = prior_knowledge(&link, &page).unwrap();
        let tcp = TcpConfig { initial_window: 3, ..TcpConfig::default() };
        let (client, server, known) = (tcp.clone(), tcp, Some(&known));
        let spec = LoadSpec { known, fast_open: true, client, server, ..LoadSpec::new(&link, &page) };
        let result = load(&spec, 1, &mut Arena::default()).unwrap();
        // The first SYN to a host may time out in the queue. Later connections to that host learn the
        // round-trip time while they wait.
        assert_eq!(result.dropped, 0);
        assert!(result.counted.handshake_timeouts <= 1 && result.connections > 10, "{result:?}");
    }

    #[test]
    fn computations_vary_between_loads_by_the_given_spread() {
        let page = Page::new("script", vec![download(0, 1_000, vec![]), compute(100, vec![Wait::End(0)])]);
        let page = page.unwrap();
        let link = LinkSpec::parse("--rtt 100ms").unwrap();
        let at = |spread, seed| {
            let spec = LoadSpec { spread, ..LoadSpec::new(&link, &page) };
            ms(load(&spec, seed, &mut Arena::default()).unwrap().load)
        };
        assert_eq!((at(0, 1), at(0, 2)), (300, 300));
        let spread: Vec<u128> = (0..20).map(|seed| at(200, seed)).collect();
        assert!(spread.iter().all(|ms| (280..=320).contains(ms)) && spread.iter().any(|ms| *ms > 305));
        assert_eq!(spread, (0..20).map(|seed| at(200, seed)).collect::<Vec<_>>());
    }

    #[test]
    fn page_that_can_never_load_is_refused() {
        let refused = |activities| Page::new("p", activities).unwrap_err().to_string();
        assert_eq!(refused(vec![compute(1, vec![])]), "page 'p' has nothing to download");
        assert_eq!(
            refused(vec![download(0, 1, vec![Wait::End(4)])]),
            "page 'p': activity 0 waits for number 4, which does not exist"
        );
        let circle =
            vec![download(0, 1, vec![]), compute(1, vec![Wait::End(2)]), compute(1, vec![Wait::End(1)])];
        assert_eq!(refused(circle), "page 'p': activity 1 waits for itself, through others");
        assert!(refused(vec![download(5_000, 1, vec![])]).contains("more than"));
    }
}
