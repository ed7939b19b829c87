//! Keys of locks, for other programs.

use conformance_tests::Outcome;

use crate::stage::{Stage, cases, ensure};

cases!("keys":
    are_what_one_line_of_sql_computes,
);

async fn are_what_one_line_of_sql_computes() -> Outcome {
    let stage = Stage::new().await?;
    for name in ["orders/42", "", "it's a \"name\" with \u{1F512}", "shop:orders/42"] {
        let text = name.replace('\'', "''");
        let line = format!(
            "SELECT ('x' || left(encode(sha256(convert_to('{text}', 'UTF8')), 'hex'), 16))::bit(64)::bigint"
        );
        let keys = stage.values(&line).await?;
        ensure!(keys == [lock_postgres::key(name).to_string()], "{name:?} has {keys:?}");
    }
    Ok(())
}
