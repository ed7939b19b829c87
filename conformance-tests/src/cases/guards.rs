//! Cases: guards release when they are dropped, wherever that happens.

use crate::{Failure, Outcome, ensure};
use lock_core::LockGuard;

use crate::case::cases;
use crate::stage::Stage;

cases!("guards":
    a_guard_dropped_inside_the_runtime_releases,
    a_guard_dropped_outside_of_a_runtime_releases,
    a_guard_dropped_after_its_runtime_has_ended_releases,
    a_guard_dropped_by_a_panic_releases,
);

async fn a_guard_dropped_inside_the_runtime_releases(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    for _ in 0..20 {
        drop(lock.acquire().await?);
        stage.becomes_free(&theirs, "room").await?;
    }
    // The same client need not wait for the release either.
    for _ in 0..20 {
        drop(stage.soon("the next acquisition", lock.acquire()).await??);
    }
    stage.becomes_free(&theirs, "room").await
}

async fn a_guard_dropped_outside_of_a_runtime_releases(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex("room")?.acquire().await?;
    on_a_thread(move || drop(guard))?;
    stage.becomes_free(&theirs, "room").await
}

fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    tokio::task::block_in_place(|| std::thread::spawn(work).join())
        .map_err(|_| Failure::new("a guard that was dropped outside of a runtime panicked"))
}

async fn a_guard_dropped_after_its_runtime_has_ended_releases(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let acquire_elsewhere = move || -> Outcome<LockGuard> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(lock.acquire())?)
    };
    let guard = on_a_thread(acquire_elsewhere)??;
    ensure!(guard.hold().is_valid(), "lost with the runtime that acquired it");
    stage.is_held(&theirs, "room").await?;
    on_a_thread(move || drop(guard))?;
    stage.becomes_free(&theirs, "room").await
}

async fn a_guard_dropped_by_a_panic_releases(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex("room")?.acquire().await?;
    // Unwinds like a panic, but prints no message.
    let task = tokio::spawn(async move {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("a defect of the user's"));
    });
    ensure!(task.await.is_err(), "the task did not panic");
    stage.becomes_free(&theirs, "room").await
}
