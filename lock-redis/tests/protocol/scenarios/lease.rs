//! Only the owner can renew and release a hold.
use crate::failure::{Outcome, holds, same};
use crate::scripts::Scripts;
use crate::server::Server;
use crate::stage::{LONG, Stage, tries, waits};

pub(crate) fn only_the_owner_renews(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let half = (LONG / 2).cast_signed();
    stage.must_get(&tries("holder").lease(LONG / 2))?;
    same("renewal by another", &stage.renew("thief", LONG)?, &2)?;
    holds("the lease is as it was", stage.remaining()? <= half)?;
    same("renewal", &stage.renew("holder", LONG)?, &1)?;
    holds("the lease is longer", stage.remaining()? > half)
}

pub(crate) fn a_late_renewal_does_not_revive(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder").lease(20))?;
    stage.until_hold_ends()?;
    same("renewal of a free lock", &stage.renew("holder", LONG)?, &0)?;
    same("the holder", &stage.holder()?, &None)?;
    stage.must_get(&tries("next").lease(LONG / 2))?;
    same("renewal when another holds", &stage.renew("holder", LONG)?, &2)?;
    holds("the lease is as it was", stage.remaining()? <= (LONG / 2).cast_signed())
}

pub(crate) fn release_by_another_changes_nothing(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    same("release of nothing", &stage.release("a")?, &(0, 0))?;
    stage.must_get(&tries("holder"))?;
    let before = stage.hold()?;
    same("release by another", &stage.release("a")?, &(2, 0))?;
    same("the hold", &stage.hold()?, &before)
}

pub(crate) fn a_release_sent_twice_says_gone(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    same("release", &stage.release("holder")?, &(1, 0))?;
    same("release again", &stage.release("holder")?, &(0, 0))
}

pub(crate) fn a_broken_holder_learns_why(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    stage.break_holder("holder")?;
    for _ in 0..2 {
        same("renewal", &stage.renew("holder", LONG)?, &3)?;
        same("release", &stage.release("holder")?, &(3, 0))?;
        same("of another", &stage.renew("other", LONG)?, &if stage.hold()?.is_some() { 2 } else { 0 })?;
        // The same again, now with another holder.
        stage.acquire(&tries("next"))?;
    }
    let lifetime = stage.lifetime("b")?;
    holds("the mark ends by itself", 0 < lifetime && lifetime <= LONG.cast_signed())
}

pub(crate) fn only_the_owner_describes_its_hold(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder").lease(LONG / 2))?;
    let before = stage.hold()?.unwrap_or_default();
    same("description by another", &stage.describe("thief", "x")?, &2)?;
    same("the hold", &stage.hold()?.unwrap_or_default(), &before)?;
    same("description", &stage.describe("holder", "{\"a\": \"b c\"}")?, &1)?;
    let words: Vec<_> = before.splitn(6, ' ').take(5).collect();
    same("the hold", &stage.hold()?, &Some(format!("{} {{\"a\": \"b c\"}}", words.join(" "))))?;
    let remaining = stage.remaining()?;
    holds("the lease is as it was", 0 < remaining && remaining <= (LONG / 2).cast_signed())?;
    same("release", &stage.release("holder")?, &(1, 0))
}

pub(crate) fn a_late_description_changes_nothing_and_hands_over(
    scripts: &Scripts,
    server: &Server,
) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    same("description of nothing", &stage.describe("holder", "x")?, &0)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("next"))?;
    stage.expire_hold()?;
    same("description of a free lock", &stage.describe("holder", "x")?, &0)?;
    same("the holder", &stage.holder()?, &Some("next".to_owned()))?;
    let before = stage.hold()?;
    same("description when another holds", &stage.describe("holder", "x")?, &2)?;
    same("the hold", &stage.hold()?, &before)
}
