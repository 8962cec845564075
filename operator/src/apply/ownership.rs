//! Who owns the fields of a child, as the API server keeps it.
//! In: `metadata.managedFields`. Out: the same with what we created handed over to our applies, if that is due.
//! Never: a change of what other managers own.
//! Source: client-go, util/csaupgrade (the same move, from `kubectl create` to `kubectl apply --server-side`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

use super::FIELD_MANAGER;

/// The entries after the move; `None` when an apply of ours owns fields already, or nothing of ours was created.
pub(super) fn handed_over(fields: Option<&[ManagedFieldsEntry]>) -> Option<Vec<ManagedFieldsEntry>> {
    let ours = |entry: &ManagedFieldsEntry, operation: &str| {
        entry.manager.as_deref() == Some(FIELD_MANAGER)
            && entry.operation.as_deref() == Some(operation)
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    let fields = fields?;
    if fields.iter().any(|entry| ours(entry, "Apply")) {
        return None;
    }
    let at = fields.iter().position(|entry| ours(entry, "Update"))?;
    let mut moved = fields.to_vec();
    moved[at].operation = Some("Apply".to_owned());
    Some(moved)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn moved(fields: &Value) -> Option<Value> {
        let entries: Vec<ManagedFieldsEntry> = serde_json::from_value(fields.clone()).unwrap();
        handed_over(Some(&entries)).map(|moved| serde_json::to_value(moved).unwrap())
    }

    #[test]
    fn what_we_created_is_handed_over_once_and_nothing_of_others() {
        let created = json!({"manager": FIELD_MANAGER, "operation": "Update", "fieldsV1": {"f:spec": {}}});
        let status = json!({"manager": FIELD_MANAGER, "operation": "Update", "subresource": "status"});
        let other = json!({"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:data": {}}});
        let applied = json!({"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {}}});
        let both = moved(&json!([other, status, created]));
        assert_eq!(both, Some(json!([other, status, applied])));
        for settled in [json!([]), json!([other, status]), json!([applied, created])] {
            assert_eq!(moved(&settled), None, "{settled}");
        }
        assert_eq!(handed_over(None), None);
    }
}
