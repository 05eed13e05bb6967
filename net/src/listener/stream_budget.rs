//! Stream budget: takes a place among the streams for each call before a service sees it, and settles its accounts.
//!
//! ```text
//! calls (Bill, empty) ──> access (Bearer) ──> here: Bill settled, Paying ──> budget, services
//! ```
//!
//! Invariants:
//! - a call holds its place as long as HTTP/2 holds anything of its answer;
//! - a token is used on no more connections than its limit;
//! - if there are tokens, calls that need none get a sixteenth of the places together; the rest is for other calls.
//!   Those of one address get its share of that sixteenth.
//!
//! Must not know: the contents of calls.

use crate::listener::auth::roles::{Bearer, Tokenless};
use crate::listener::auth::tokens::{Payer, Resource};
use crate::listener::bill::{Bill, Place};
use crate::listener::connection_info::{Answering, ConnectionInfo, refuse_call};
use crate::listener::memory_budget::{Budget, Paying};
use crate::served::refusals::Refusal;
use crate::wire::status::to_status;
use chiplog::{Error, ErrorKind};
use http::{Extensions, Request, Response};
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tower_layer::Layer;

/// Counts calls, and rejects those above the limits of a [`Budget`]. Must be within
/// [`AccessLayer`](crate::listener::auth::roles::AccessLayer), which knows the token.
///
/// ```
/// use chiplog_net::listener::memory_budget::Budget;
/// use chiplog_net::listener::stream_budget::CallBudgetLayer;
/// let server = chiplog_net::listener::server().layer(CallBudgetLayer::new(Budget::default()));
/// # drop(server);
/// ```
#[derive(Clone, Debug)]
pub struct CallBudgetLayer {
    budget: Budget,
}

impl CallBudgetLayer {
    /// A layer with this budget.
    pub fn new(budget: Budget) -> Self {
        Self { budget }
    }
}

impl<S> Layer<S> for CallBudgetLayer {
    type Service = CallBudgeted<S>;

    fn layer(&self, inner: S) -> CallBudgeted<S> {
        CallBudgeted { inner, budget: self.budget.clone() }
    }
}

/// A service within a [`CallBudgetLayer`].
///
/// ```
/// use chiplog_net::listener::stream_budget::{CallBudgetLayer, CallBudgeted};
/// use tower_layer::Layer;
/// let budgeted: CallBudgeted<&str> = CallBudgetLayer::new(Default::default()).layer("a service");
/// # drop(budgeted);
/// ```
#[derive(Clone, Debug)]
pub struct CallBudgeted<S> {
    inner: S,
    budget: Budget,
}

impl<S> Service<Request<Body>> for CallBudgeted<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let payer = self.budget.payer_of(request.extensions());
        match self.place(&payer, request.extensions()) {
            Ok(place) => {
                if let Some(bill) = request.extensions().get::<Bill>() {
                    bill.settle(&payer, place);
                }
                request.extensions_mut().insert(Paying(payer));
                Box::pin(self.inner.call(request))
            }
            Err(status) => refuse_call(&request, status),
        }
    }
}

impl<S> CallBudgeted<S> {
    /// # Errors
    /// Busy: names the limit.
    fn place(&self, payer: &Arc<Payer>, extensions: &Extensions) -> Result<Place, Status> {
        let is_tokenless = extensions.get().is_some_and(|Tokenless| true);
        let tokenless = match is_tokenless {
            true => {
                let place = payer.try_take(Resource::Tokenless, 1);
                Some(place.map_err(|tier| self.no_place(&format!("without a token {}", tier.name())))?)
            }
            false => None,
        };
        let shown = extensions.get().map(|Bearer(token)| *token).zip(extensions.get::<ConnectionInfo>());
        if let Some((token, arrival)) = shown
            && !arrival.shows(token, payer)
        {
            let what = "too many connections use this call's token; close some, or try again later";
            return Err(self.refuse(Refusal::ConnectionsOfToken, what));
        }
        let share = payer.try_take(Resource::Streams, 1).map_err(|tier| self.no_place(tier.name()))?;
        Ok((share, tokenless))
    }

    fn no_place(&self, of: &str) -> Status {
        let what = format!("too many open calls {of}; end some, or try again later");
        self.refuse(Refusal::Streams, &what)
    }

    fn refuse(&self, why: Refusal, what: &str) -> Status {
        self.budget.refusals().count(why);
        to_status(&Error::new(ErrorKind::Busy, what), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::auth::roles::{Access, AccessLayer, digest_of};
    use crate::listener::memory_budget::BudgetLimits;
    use std::sync::Mutex;

    /// Keeps the bills of calls that are let in: they stay open.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<Bill>>>);

    impl Service<Request<Body>> for Kept {
        type Response = Response<Body>;
        type Error = std::convert::Infallible;
        type Future = std::future::Ready<Result<Response<Body>, Self::Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            self.0.lock().unwrap().push(request.extensions().get::<Bill>().unwrap().clone());
            std::future::ready(Ok(Response::new(Body::empty())))
        }
    }

    /// Health calls of a few connections took all places of calls with a token.
    #[tokio::test]
    async fn calls_without_a_token_leave_room_for_the_others() {
        for streams in [32, 160] {
            let limits = BudgetLimits::default().streams(streams).share_percent(100);
            let budget = Budget::new(limits, Arc::default());
            let tokens = format!("read:{}", digest_of("t")).parse().unwrap();
            let access = Arc::new(Access::new(Some(tokens), Arc::default()));
            let kept = Kept::default();
            let mut server =
                AccessLayer::new(access).layer(CallBudgetLayer::new(budget.clone()).layer(kept.clone()));
            let mut call = async |path: &str, token: Option<&str>| {
                let mut request = Request::new(Body::empty());
                *request.uri_mut() = path.parse().unwrap();
                request.extensions_mut().insert(Bill::default());
                if let Some(token) = token {
                    let value = format!("Bearer {token}").parse().unwrap();
                    request.headers_mut().insert(http::header::AUTHORIZATION, value);
                }
                let before = kept.0.lock().unwrap().len();
                let response = server.call(request).await.unwrap();
                let status = tonic::Status::from_header_map(response.headers());
                status.map_or(Ok(()), Err).inspect(|()| assert_eq!(kept.0.lock().unwrap().len(), before + 1))
            };
            let tokenless = (streams / 16).max(4);
            for n in 0..streams {
                let method = ["Check", "Watch"][n % 2];
                let called = call(&format!("/grpc.health.v1.Health/{method}"), None).await;
                assert_eq!(called.is_ok(), n < tokenless, "{n}");
                if let Err(status) = called {
                    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
                    assert!(status.message().contains("without a token"), "{status}");
                }
            }
            for _ in tokenless..streams {
                call("/chiplog.v1.Log/Info", Some("t")).await.unwrap();
            }
            assert_eq!(budget.streams(), streams);
            assert!(call("/chiplog.v1.Log/Info", Some("t")).await.is_err());
            kept.0.lock().unwrap().clear();
            assert_eq!(budget.streams(), 0);
            call("/grpc.health.v1.Health/Check", None).await.unwrap();
        }
    }
}
