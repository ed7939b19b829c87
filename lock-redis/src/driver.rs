//! What the facade knows about this backend.

use lock_kit::Driver;

use crate::options::RedisOptions;

/// The backend's driver: its schemes, its options, and how to connect.
pub static DRIVER: Driver = Driver::of::<RedisOptions>("redis", &SCHEMES)
    .summary("locks across machines, kept by a Redis server")
    .examples(&[
        "redis://cache:6379",
        "redis://cache:6379?lease=60s",
        "rediss://app@cache?password_file=/etc/app/pw",
        "unix:///run/redis.sock",
        "redis+sentinel://s1,s2,s3/mymaster",
        "redis+cluster://n1,n2,n3",
    ]);

const SCHEMES: [&str; 7] =
    ["redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"];
