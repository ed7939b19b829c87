//! Tests of the settings.

use super::*;
use crate::types::url::LockUrl;

#[test]
fn what_the_program_says_about_connecting_comes_before_the_url() {
    let read = |builder: ClientBuilder| {
        let mut options = LockUrl::parse("test:?connect_timeout=3s&connect=lazy").unwrap().options();
        let builder = builder.with_url_options(&mut options).unwrap();
        (builder.connect_timeout, builder.connect_mode)
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(read(ClientBuilder::new()), (seconds(3), Some(ConnectMode::Lazy)));
    let builder = ClientBuilder::new().connect_timeout(Duration::from_secs(60));
    assert_eq!(read(builder.connect_mode(ConnectMode::Eager)), (seconds(60), Some(ConnectMode::Eager)));
}
